// A stand-in for Mooncake's real_client.h, of Moonring's own: the part of mooncake::RealClient that Moonring's shim uses, over a
// store inside the process. For tests only; it is no Mooncake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace mooncake {

using ConfigDict = std::unordered_map<std::string, std::string>;

enum class ErrorCode : int32_t { OK = 0, INVALID_PARAMS = -600 };

}  // namespace mooncake

namespace tl {

// As much of tl::expected<void, E> as the shim looks at.
template <typename T, typename E>
class expected;

template <typename E>
class expected<void, E> {
   public:
    expected() = default;
    explicit expected(E error) : error_(error), has_(false) {}
    explicit operator bool() const { return has_; }
    E error() const { return error_; }

   private:
    E error_{};
    bool has_ = true;
};

}  // namespace tl

namespace mooncake {

struct ReplicateConfig {
    size_t replica_num = 1;
};

class RealClient {
   public:
    static std::shared_ptr<RealClient> create();
    ~RealClient();

    tl::expected<void, ErrorCode> setup_internal(const ConfigDict &config);
    int tearDownAll();

    int register_buffer(void *buffer, size_t size);
    int unregister_buffer(void *buffer);

    std::vector<int> batchIsExist(const std::vector<std::string> &keys);
    std::vector<int64_t> batch_get_into(const std::vector<std::string> &keys,
                                        const std::vector<void *> &buffers,
                                        const std::vector<size_t> &sizes);
    std::vector<int> batch_put_from(
        const std::vector<std::string> &keys,
        const std::vector<void *> &buffers, const std::vector<size_t> &sizes,
        const ReplicateConfig &config = ReplicateConfig{});
    std::vector<int> batchRemove(const std::vector<std::string> &keys,
                                 bool force = false);

   private:
    RealClient();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace mooncake

// How tests talk to the stand-in.
extern "C" {
// What the next calls do: "" nothing special, "throw" std::runtime_error, "throw int", "short" one result too few.
__attribute__((visibility("default"))) void standin_tell(const char *fault);
// Lets the leases' time pass.
__attribute__((visibility("default"))) void standin_pass_ms(int64_t ms);
// The value that set-up got for this key, or NULL.
__attribute__((visibility("default"))) const char *standin_configured(const char *key);
// Clients that are set up now.
__attribute__((visibility("default"))) int standin_clients(void);
}
