/* The one seam between Moonring and Mooncake: a table of C functions.
 *
 * The first part is Mooncake's own C interface, as libmooncake_store exports it; its names and types are Mooncake's. The
 * second part is Moonring's extensions, which a library may export besides: the wheel bridge and the linked build do.
 *
 * What holds for all: keys are NUL-terminated; no pointer is kept after a call returns; a negative result is one of
 * Mooncake's error codes. A batch call returns 0 when `results` holds one result per key; after any other value
 * `results` says nothing.
 */
#ifndef MOONRING_MOONCAKE_SEAM_H
#define MOONRING_MOONCAKE_SEAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mooncake's own ---------------------------------------------------------------------------------------------- */

typedef void *mooncake_store_t;

/* How an object is written; NULL in place of it means Mooncake's defaults. */
typedef struct {
    size_t replica_num; /* at least 1 */
    int with_soft_pin;
    int with_hard_pin;
    const char **preferred_segments;
    size_t preferred_segments_count;
} mooncake_replicate_config_t;

mooncake_store_t mooncake_store_create(void);
void mooncake_store_destroy(mooncake_store_t store);

int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                         const char *metadata_server,
                         uint64_t global_segment_size,
                         uint64_t local_buffer_size, const char *protocol,
                         const char *device_name,
                         const char *master_server_addr);

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer,
                                   size_t size);
int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer);

/* results[i]: 1 exists, 0 does not, negative: error. */
int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys,
                                  size_t count, int *results);
/* results[i]: the object's length in bytes, negative: error. */
int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results);
/* results[i]: 0 accepted, negative: error. */
int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count,
                                  const mooncake_replicate_config_t *config,
                                  int *results);
/* 0 removed, negative: error. With force != 0 also when leased. */
int mooncake_store_remove(mooncake_store_t store, const char *key, int force);

/* ---- Moonring's extensions (each optional) ------------------------------------------------------------------------ */

/* Sets up from a dictionary: `count` pairs, which reach Mooncake as they are. Returns Mooncake's code. */
int moonring_mooncake_setup_dict(mooncake_store_t store, const char **keys,
                                 const char **values, size_t count);
/* results[i]: 0 removed, negative: error. */
int moonring_mooncake_batch_remove(mooncake_store_t store, const char **keys,
                                   size_t count, int force, int *results);
/* The version of the Mooncake behind this library, or NULL where it can't be known. Lives as long as the library. */
const char *moonring_mooncake_version(void);
/* Why the last create or setup of this thread failed, for people, or NULL. Valid until the thread's next call. */
const char *moonring_mooncake_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
