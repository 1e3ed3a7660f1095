// The seam over Mooncake's C++ client, for a linked build: see build/mooncake.rs.
//
// Nothing that C++ throws leaves a function here: it becomes -1, with its text in moonring_mooncake_last_error.

#include "seam.h"

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "real_client.h"

namespace {

constexpr int kInternalError = -1;
constexpr int kInvalidParams = -600;
constexpr int kNotSupported = -1012;

struct Client {
    std::shared_ptr<mooncake::RealClient> real;
};

mooncake::RealClient &real(mooncake_store_t store) {
    return *static_cast<Client *>(store)->real;
}

// Why this thread's last call failed, for moonring_mooncake_last_error.
thread_local std::string last_error;

void say(const char *what) noexcept {
    try {
        last_error = what;
    } catch (...) {
        last_error.clear();
    }
}

// Runs `call`; what it throws becomes `failed`.
template <typename Call, typename Failed>
auto guarded(Failed failed, Call &&call) noexcept -> std::decay_t<Failed> {
    last_error.clear();
    try {
        return call();
    } catch (const std::exception &error) {
        say(error.what());
    } catch (...) {
        say("an exception that is no std::exception");
    }
    return failed;
}

std::vector<std::string> strings(const char **list, size_t count) {
    return std::vector<std::string>(list, list + count);
}

// Copies one result per key, or none: results that are not as many as the keys can't be told apart.
template <typename Results, typename Result>
int copied(const Results &from, size_t count, Result *to) {
    if (from.size() != count) {
        say("another number of results than keys");
        return kInternalError;
    }
    for (size_t i = 0; i < count; ++i) {
        to[i] = static_cast<Result>(from[i]);
    }
    return 0;
}

int set_up(mooncake_store_t store, const mooncake::ConfigDict &config) {
    const auto result = real(store).setup_internal(config);
    return result ? 0 : static_cast<int>(result.error());
}

}  // namespace

extern "C" {

mooncake_store_t mooncake_store_create(void) {
    return guarded(mooncake_store_t{nullptr}, []() -> mooncake_store_t {
        auto made = mooncake::RealClient::create();
        if (!made) return nullptr;
        return new Client{std::move(made)};
    });
}

void mooncake_store_destroy(mooncake_store_t store) {
    if (!store) return;
    guarded(0, [&] { return real(store).tearDownAll(); });
    guarded(0, [&] {
        delete static_cast<Client *>(store);
        return 0;
    });
}

int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                         const char *metadata_server,
                         uint64_t global_segment_size,
                         uint64_t local_buffer_size, const char *protocol,
                         const char *device_name,
                         const char *master_server_addr) {
    return guarded(kInternalError, [&] {
        return set_up(store, {
            {"local_hostname", local_hostname},
            {"metadata_server", metadata_server},
            {"global_segment_size", std::to_string(global_segment_size)},
            {"local_buffer_size", std::to_string(local_buffer_size)},
            {"protocol", protocol},
            {"rdma_devices", device_name},
            {"master_server_addr", master_server_addr},
        });
    });
}

int moonring_mooncake_setup_dict(mooncake_store_t store, const char **keys,
                                 const char **values, size_t count) {
    return guarded(kInternalError, [&] {
        mooncake::ConfigDict config;
        for (size_t i = 0; i < count; ++i) {
            config.emplace(keys[i], values[i]);
        }
        return set_up(store, config);
    });
}

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer,
                                   size_t size) {
    return guarded(kInternalError,
                   [&] { return real(store).register_buffer(buffer, size); });
}

int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer) {
    return guarded(kInternalError,
                   [&] { return real(store).unregister_buffer(buffer); });
}

int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys,
                                  size_t count, int *results) {
    return guarded(kInternalError, [&] {
        return copied(real(store).batchIsExist(strings(keys, count)), count,
                      results);
    });
}

int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results) {
    return guarded(kInternalError, [&] {
        const std::vector<void *> to(buffers, buffers + count);
        const std::vector<size_t> lengths(sizes, sizes + count);
        return copied(
            real(store).batch_get_into(strings(keys, count), to, lengths), count,
            results);
    });
}

int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count,
                                  const mooncake_replicate_config_t *config,
                                  int *results) {
    // Moonring passes none, and the C++ structure differs from version to version.
    if (config) return kNotSupported;
    return guarded(kInternalError, [&] {
        const std::vector<void *> from(buffers, buffers + count);
        const std::vector<size_t> lengths(sizes, sizes + count);
        return copied(
            real(store).batch_put_from(strings(keys, count), from, lengths),
            count, results);
    });
}

int moonring_mooncake_batch_remove(mooncake_store_t store, const char **keys,
                                   size_t count, int force, int *results) {
    return guarded(kInternalError, [&] {
        return copied(real(store).batchRemove(strings(keys, count), force != 0),
                      count, results);
    });
}

int mooncake_store_remove(mooncake_store_t store, const char *key, int force) {
    int result = kInvalidParams;
    const int code = moonring_mooncake_batch_remove(store, &key, 1, force, &result);
    return code ? code : result;
}

const char *moonring_mooncake_version(void) {
#ifdef MOONRING_MOONCAKE_VERSION
    return MOONRING_MOONCAKE_VERSION;
#else
    return nullptr;
#endif
}

const char *moonring_mooncake_last_error(void) {
    return last_error.empty() ? nullptr : last_error.c_str();
}

}  // extern "C"
