// The stand-in's store: objects are immutable, uses take leases, and the traps that were measured on Mooncake are there.
#include "real_client.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

namespace {

constexpr int kInvalidParams = -600;
constexpr int kNotFound = -704;
constexpr int kLeased = -706;
constexpr int64_t kLeaseMs = 10'000;

std::mutex control;
std::string fault;
mooncake::ConfigDict configured;
std::atomic<int64_t> now_ms{0};
std::atomic<int> clients{0};

std::string told() {
    std::lock_guard<std::mutex> lock(control);
    return fault;
}

void throw_if_told() {
    const auto what = told();
    if (what == "throw") throw std::runtime_error("as the test told");
    if (what == "throw int") throw 42;
}

template <typename Result>
std::vector<Result> counted(std::vector<Result> results) {
    if (told() == "short" && !results.empty()) results.pop_back();
    return results;
}

struct Object {
    std::vector<char> bytes;
    int64_t leased_until;
};

}  // namespace

extern "C" {
void standin_tell(const char *what) {
    std::lock_guard<std::mutex> lock(control);
    fault = what;
}
void standin_pass_ms(int64_t ms) { now_ms += ms; }
const char *standin_configured(const char *key) {
    std::lock_guard<std::mutex> lock(control);
    const auto found = configured.find(key);
    return found == configured.end() ? nullptr : found->second.c_str();
}
int standin_clients(void) { return clients; }
}

namespace mooncake {

struct RealClient::State {
    std::mutex mutex;
    std::map<std::string, Object> objects;
    std::map<char *, size_t> buffers;
    std::atomic<bool> up{false};

    // As the real one, a call before set-up or after the tear-down ends the process.
    void must_be_up() const {
        if (!up) std::abort();
    }
};

RealClient::RealClient() : state_(new State) {}
RealClient::~RealClient() { tearDownAll(); }

std::shared_ptr<RealClient> RealClient::create() {
    throw_if_told();
    return std::shared_ptr<RealClient>(new RealClient());
}

tl::expected<void, ErrorCode> RealClient::setup_internal(
    const ConfigDict &config) {
    throw_if_told();
    for (const auto *needed : {"local_hostname", "metadata_server"}) {
        const auto found = config.find(needed);
        if (found == config.end() || found->second.empty()) {
            return tl::expected<void, ErrorCode>(ErrorCode::INVALID_PARAMS);
        }
    }
    {
        std::lock_guard<std::mutex> lock(control);
        configured = config;
    }
    state_->up = true;
    ++clients;
    return {};
}

int RealClient::tearDownAll() {
    if (state_->up.exchange(false)) --clients;
    return 0;
}

int RealClient::register_buffer(void *buffer, size_t size) {
    state_->must_be_up();
    throw_if_told();
    auto *begin = static_cast<char *>(buffer);
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (const auto &[other, len] : state_->buffers) {
        if (begin < other + len && other < begin + size) return kInvalidParams;
    }
    state_->buffers[begin] = size;
    return 0;
}

int RealClient::unregister_buffer(void *buffer) {
    state_->must_be_up();
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->buffers.erase(static_cast<char *>(buffer)) ? 0
                                                              : kInvalidParams;
}

std::vector<int> RealClient::batchIsExist(
    const std::vector<std::string> &keys) {
    state_->must_be_up();
    throw_if_told();
    std::vector<int> results;
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (const auto &key : keys) {
        const auto found = state_->objects.find(key);
        const bool there = found != state_->objects.end();
        if (there) found->second.leased_until = now_ms + kLeaseMs;
        results.push_back(there ? 1 : 0);
    }
    return counted(results);
}

std::vector<int64_t> RealClient::batch_get_into(
    const std::vector<std::string> &keys, const std::vector<void *> &buffers,
    const std::vector<size_t> &sizes) {
    state_->must_be_up();
    std::vector<int64_t> results;
    // Of equal keys only the last buffer is filled, and all report success.
    std::map<std::string, size_t> last;
    for (size_t i = 0; i < keys.size(); ++i) last[keys[i]] = i;
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        for (size_t i = 0; i < keys.size(); ++i) {
            const auto found = state_->objects.find(keys[i]);
            if (found == state_->objects.end()) {
                results.push_back(kNotFound);
                continue;
            }
            auto &[bytes, leased_until] = found->second;
            leased_until = now_ms + kLeaseMs;
            if (bytes.size() > sizes[i]) {
                results.push_back(kInvalidParams);
                continue;
            }
            if (last[keys[i]] == i) {
                std::memcpy(buffers[i], bytes.data(), bytes.size());
            }
            results.push_back(static_cast<int64_t>(bytes.size()));
        }
    }
    // Thrown late, when everything was written.
    throw_if_told();
    return counted(results);
}

std::vector<int> RealClient::batch_put_from(
    const std::vector<std::string> &keys, const std::vector<void *> &buffers,
    const std::vector<size_t> &sizes, const ReplicateConfig &config) {
    state_->must_be_up();
    throw_if_told();
    std::vector<int> results;
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (size_t i = 0; i < keys.size(); ++i) {
        if (keys[i].empty() || sizes[i] == 0 || config.replica_num == 0) {
            results.push_back(kInvalidParams);
            continue;
        }
        const auto *begin = static_cast<const char *>(buffers[i]);
        state_->objects.emplace(
            keys[i], Object{{begin, begin + sizes[i]}, 0});
        results.push_back(0);
    }
    return counted(results);
}

std::vector<int> RealClient::batchRemove(const std::vector<std::string> &keys,
                                         bool force) {
    state_->must_be_up();
    throw_if_told();
    std::vector<int> results;
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (const auto &key : keys) {
        const auto found = state_->objects.find(key);
        if (found == state_->objects.end()) {
            results.push_back(kNotFound);
        } else if (!force && found->second.leased_until > now_ms) {
            results.push_back(kLeased);
        } else {
            state_->objects.erase(found);
            results.push_back(0);
        }
    }
    return counted(results);
}

}  // namespace mooncake
