/* A C library with Mooncake's names that does what a test tells it, and no more: nothing is stored. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "seam.h"

/* What is told: results and return values. */
static int64_t result = 0;
static int writes = 1;
static int returns = 0;
static int setup_returns = 0;
static int register_returns = 0;
static int create_fails = 0;
static int create_meddles = 0;
static int setup_hangs = 0;
static atomic_int calls_hang;

static atomic_int calls, creates, destroys, in_setup, in_call;
static char heard[4096];

void standin_set(const char *what, int64_t value) {
    if (!strcmp(what, "result")) result = value;
    if (!strcmp(what, "writes")) writes = (int)value;
    if (!strcmp(what, "returns")) returns = (int)value;
    if (!strcmp(what, "setup_returns")) setup_returns = (int)value;
    if (!strcmp(what, "register_returns")) register_returns = (int)value;
    if (!strcmp(what, "create_fails")) create_fails = (int)value;
    if (!strcmp(what, "create_meddles")) create_meddles = (int)value;
    if (!strcmp(what, "setup_hangs")) setup_hangs = (int)value;
    if (!strcmp(what, "calls_hang")) calls_hang = (int)value;
}

int standin_count(const char *what) {
    if (!strcmp(what, "calls")) return calls;
    if (!strcmp(what, "creates")) return creates;
    if (!strcmp(what, "destroys")) return destroys;
    if (!strcmp(what, "in_setup")) return in_setup;
    if (!strcmp(what, "in_call")) return in_call;
    return -1;
}

/* The set-up's arguments, separated by '|'. */
const char *standin_heard(void) { return heard; }

/* What a client library does at the end of the process: it waits for its calls. A client that is left is told. */
static void at_exit(void) {
    const char text[] = "teardown with a client\n";
    if (creates != destroys && write(1, text, sizeof text - 1) < 0) return;
    while (in_call) usleep(1000);
}

mooncake_store_t mooncake_store_create(void) {
    if (!creates++) atexit(at_exit);
    if (create_meddles) {
        /* What a client library may do to the thread and the process that it is made in. */
        cpu_set_t one;
        sigset_t some;
        int cpu;
        signal(SIGTERM, SIG_IGN);
        signal(SIGUSR1, SIG_IGN);
        sigfillset(&some);
        pthread_sigmask(SIG_SETMASK, &some, NULL);
        for (cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            if (sched_setaffinity(0, sizeof one, &one) == 0) break;
        }
    }
    return create_fails ? NULL : heard;
}

void mooncake_store_destroy(mooncake_store_t store) {
    (void)store;
    ++destroys;
}

static void hear(const char *text) {
    strncat(heard, text, sizeof heard - strlen(heard) - 2);
    strcat(heard, "|");
}

static void hear_number(uint64_t number) {
    char text[32];
    int at = sizeof text - 1;
    text[at] = 0;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    hear(text + at);
}

int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                         const char *metadata_server,
                         uint64_t global_segment_size,
                         uint64_t local_buffer_size, const char *protocol,
                         const char *device_name,
                         const char *master_server_addr) {
    (void)store;
    ++in_setup;
    heard[0] = 0;
    hear(local_hostname);
    hear(metadata_server);
    hear_number(global_segment_size);
    hear_number(local_buffer_size);
    hear(protocol);
    hear(device_name);
    hear(master_server_addr);
    while (setup_hangs) usleep(1000);
    --in_setup;
    return setup_returns;
}

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer,
                                   size_t size) {
    (void)store, (void)buffer, (void)size;
    ++calls;
    return register_returns;
}

int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer) {
    (void)store, (void)buffer;
    ++calls;
    return register_returns;
}

static int answer(size_t count, int *results) {
    size_t i;
    ++calls;
    ++in_call;
    while (calls_hang) usleep(1000);
    --in_call;
    for (i = 0; writes && i < count; ++i) results[i] = (int)result;
    return returns;
}

int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys,
                                  size_t count, int *results) {
    (void)store, (void)keys;
    return answer(count, results);
}

int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count,
                                  const mooncake_replicate_config_t *config,
                                  int *results) {
    (void)store, (void)keys, (void)buffers, (void)sizes, (void)config;
    return answer(count, results);
}

#ifndef WITHOUT_BATCH_GET
int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys,
                                  void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results) {
    size_t i;
    (void)store, (void)keys, (void)buffers, (void)sizes;
    ++calls;
    for (i = 0; writes && i < count; ++i) results[i] = result;
    return returns;
}
#endif

int mooncake_store_remove(mooncake_store_t store, const char *key, int force) {
    (void)store, (void)key, (void)force;
    ++calls;
    return writes ? (int)result : returns;
}
