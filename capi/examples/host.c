/* A host in C: its own memory, an epoll loop on the eventfd, and an orderly end. tools/check-c builds and runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "moonring.h"

enum { BLOCK = 4096, BLOCKS = 64 };

static void must(int status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, moonring_status_name(status), moonring_last_error());
        exit(1);
    }
}

/* Submits an op for each block, and waits for all in an epoll loop. Returns how many ended with `status`. */
static int run(moonring_pair *pair, int epoll, uint8_t kind, uint8_t *memory, moonring_status status) {
    moonring_op ops[BLOCKS];
    char keys[BLOCKS][32];
    memset(ops, 0, sizeof ops);
    for (int i = 0; i < BLOCKS; i++) {
        ops[i].kind = kind;
        ops[i].key = keys[i];
        ops[i].key_len = (size_t)snprintf(keys[i], sizeof keys[i], "model@0@0@%x", i);
        ops[i].buffer = memory + (size_t)i * BLOCK; /* Lookups and deletes take no notice. */
        ops[i].buffer_len = BLOCK;
        ops[i].user_data = (uint64_t)i;
    }
    size_t accepted = 0;
    must(moonring_submit(pair, ops, BLOCKS, &accepted), "submit");
    int ended = 0, well = 0;
    while (ended < BLOCKS) {
        moonring_completion done[16];
        size_t n = moonring_poll(pair, done, 16);
        for (size_t i = 0; i < n; i++) {
            ended += !(done[i].flags & MOONRING_RELEASE);
            well += done[i].status == status;
        }
        /* Drained, then armed, then asleep: in this order. */
        struct epoll_event event;
        if (n == 0 && moonring_arm(pair) && epoll_wait(epoll, &event, 1, 10000) != 1) {
            fprintf(stderr, "nothing comes\n");
            exit(1);
        }
    }
    return well;
}

int main(void) {
    /* First blocks to be stored, then places for what is read. */
    size_t len = 2 * (size_t)BLOCKS * BLOCK;
    uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *read = memory + len / 2;
    moonring_engine *engine = NULL;
    int refused = moonring_open("{\"type\": \"memory\", \"num_workers\": 0}", memory, len, &engine);
    printf("refused: %s: %s\n", moonring_status_name(refused), moonring_last_error());
    must(moonring_open("{\"type\": \"memory\", \"lease_ms\": 0}", memory, len, &engine), "open");

    moonring_pair *pair = NULL;
    must(moonring_pair_open(engine, BLOCKS, &pair), "pair");
    int epoll = epoll_create1(EPOLL_CLOEXEC), ring = moonring_event_fd(pair);
    must(ring, "eventfd");
    struct epoll_event interest = {.events = EPOLLIN | EPOLLET};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, ring, &interest) != 0) return 1;

    for (size_t i = 0; i < len / 2; i++) memory[i] = (uint8_t)(i / BLOCK + i);
    printf("missed %d\n", run(pair, epoll, MOONRING_RETRIEVE, read, MOONRING_NOT_FOUND));
    printf("stored %d\n", run(pair, epoll, MOONRING_STORE, memory, MOONRING_OK));
    printf("found %d\n", run(pair, epoll, MOONRING_LOOKUP, memory, MOONRING_OK));
    printf("read %d\n", run(pair, epoll, MOONRING_RETRIEVE, read, MOONRING_OK));
    printf("bytes %s\n", memcmp(memory, read, len / 2) == 0 ? "equal" : "DIFFER");
    printf("deleted %d\n", run(pair, epoll, MOONRING_DELETE, memory, MOONRING_OK));

    moonring_op bad = {.kind = MOONRING_LOOKUP, .key = "", .key_len = 0};
    size_t accepted = 1;
    int status = moonring_submit(pair, &bad, 1, &accepted);
    printf("bad op: %s: %s, accepted %zu\n", moonring_status_name(status), moonring_last_error(), accepted);

    /* Here ops may wait for a fuller call: one alone would for a minute, the second makes it go. */
    moonring_pair_options options = {.depth = BLOCKS, .linger_ops = 2, .linger_us = 60000000};
    moonring_pair *patient = NULL;
    must(moonring_pair_open_with(engine, &options, &patient), "a patient pair");
    moonring_op op = {.kind = MOONRING_LOOKUP, .key = "key", .key_len = 3};
    must(moonring_submit(patient, &op, 1, &accepted), "submit");
    printf("one alone: %s\n", moonring_status_name(moonring_wait(patient, 1, 50)));
    must(moonring_submit(patient, &op, 1, &accepted), "submit");
    printf("two: %s\n", moonring_status_name(moonring_wait(patient, 2, 10000)));

    moonring_pair_close(patient);
    moonring_pair_close(pair);
    moonring_shutdown_report report;
    must(moonring_shutdown(engine, 1, 5000, &report), "shutdown");
    printf("completed %d, unreleased %d\n", (int)report.completed, (int)report.unreleased);
    moonring_close(engine);
    munmap(memory, len); /* Nothing is unreleased. */
    return 0;
}
