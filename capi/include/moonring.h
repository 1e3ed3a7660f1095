/* Moonring: a submission engine in front of Mooncake Store. Generated from capi/src by cbindgen; docs/c.md is the guide.
 *
 * Unless said otherwise a function returns a `moonring_status`: 0, or a negative one, whose text is in `moonring_last_error`.
 * Pointers must be valid, and are not kept but for what a function says.
 */

#ifndef MOONRING_H
#define MOONRING_H

#include <stddef.h>
#include <stdint.h>

// Op: is an object with this key there?
#define MOONRING_LOOKUP 0

// Op: read an object into the buffer.
#define MOONRING_RETRIEVE 1

// Op: write an object from the buffer.
#define MOONRING_STORE 2

// Op: remove an object.
#define MOONRING_DELETE 3

// Flag of a delete: also a leased object.
#define MOONRING_FORCE 1

// Flag of a retrieve: an object of another length than the buffer is an error.
#define MOONRING_EXACT 2

// Flag: the op can wait.
#define MOONRING_BACKGROUND 4

// Flag of a completion: a release notice follows; until then the buffer belongs to the engine.
#define MOONRING_MORE 1

// Flag of a completion: it is that notice. The op ended before, with the same status.
#define MOONRING_RELEASE 2

// `value` of a store that went well: new, already there, or being written by another; Mooncake can't tell.
#define MOONRING_ACCEPTED 0

// `value` of a store that went well: the object is new.
#define MOONRING_STORED 1

// `value` of a store that went well: an object was there, and stays as it was.
#define MOONRING_ALREADY_THERE 2

// How a call or an op ended. 0 is well; each number keeps its meaning, and new ones may come.
enum moonring_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It went well.
  MOONRING_OK = 0,
  // A pointer is NULL, or a number out of its range.
  MOONRING_BAD_ARGUMENT = -1,
  // The configuration was refused.
  MOONRING_BAD_CONFIG = -2,
  // The store could not be opened.
  MOONRING_OPEN_FAILED = -3,
  // The engine could not be started.
  MOONRING_START_FAILED = -4,
  // The system refused something; the text says what.
  MOONRING_SYSTEM = -5,
  // No credit is left: reap completions first.
  MOONRING_NO_CREDIT = -10,
  // The ring of this kind is full for the moment.
  MOONRING_RING_FULL = -11,
  // The op was refused for its key, its buffer, or its length.
  MOONRING_BAD_OP = -12,
  // The time given to wait was up.
  MOONRING_WAIT_TIMED_OUT = -13,
  // The call would wait for itself.
  MOONRING_WOULD_DEADLOCK = -14,
  // The engine is shut down.
  MOONRING_SHUT_DOWN = -15,
  // This is a forked child: the engine is its parent's.
  MOONRING_FORKED = -16,
  // A bug of Moonring's: it panicked.
  MOONRING_PANICKED = -17,
  // No object has this key.
  MOONRING_NOT_FOUND = -100,
  // The object has a read lease.
  MOONRING_LEASED = -101,
  // The store has no space left.
  MOONRING_NO_SPACE = -102,
  // The object is longer than the buffer.
  MOONRING_SHORT_BUFFER = -103,
  // An exact retrieve found another length.
  MOONRING_LENGTH_MISMATCH = -104,
  // The lease ended during the transfer.
  MOONRING_LEASE_EXPIRED = -105,
  // The object is being written.
  MOONRING_NOT_READY = -106,
  // The object is in use by another operation of the store.
  MOONRING_BUSY = -107,
  // The object is there already, where a store reports that as an error.
  MOONRING_ALREADY_EXISTS = -108,
  // The store refused the arguments.
  MOONRING_INVALID_ARGUMENT = -109,
  // The store does not let this client do it.
  MOONRING_ILLEGAL_CLIENT = -110,
  // No storage segment is mounted.
  MOONRING_NO_SEGMENT = -111,
  // The transfer failed.
  MOONRING_TRANSFER_FAILED = -112,
  // The bytes arrived damaged.
  MOONRING_CHECKSUM_MISMATCH = -113,
  // The call to the store's master failed.
  MOONRING_RPC_FAILED = -114,
  // The call to the store's master timed out.
  MOONRING_RPC_TIMED_OUT = -115,
  // The store can't serve this now.
  MOONRING_UNAVAILABLE = -116,
  // The store does not offer this.
  MOONRING_UNSUPPORTED = -117,
  // The store reported an internal error.
  MOONRING_STORE_INTERNAL = -118,
  // The store panicked during the call.
  MOONRING_STORE_PANICKED = -119,
  // The store returned a wrong number of results.
  MOONRING_WRONG_RESULT_COUNT = -120,
  // The store gave no or an impossible result.
  MOONRING_BAD_RESULT = -121,
  // The time was up before a store call took the op.
  MOONRING_TIMED_OUT_NEVER_STARTED = -122,
  // The time was up during the store call.
  MOONRING_TIMED_OUT_IN_PROGRESS = -123,
  // Cancelled before a store call took the op.
  MOONRING_CANCELLED_NEVER_STARTED = -124,
  // Cancelled during the store call.
  MOONRING_CANCELLED_IN_PROGRESS = -125,
  // A code of the store that this version doesn't know; it is the completion's `value`.
  MOONRING_STORE_CODE = -126,
  // Something that this version of the interface has no number for.
  MOONRING_OTHER = -199,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum moonring_status moonring_status;
#else
typedef int32_t moonring_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A running engine. Its functions may be called from any thread.
typedef struct moonring_engine moonring_engine;

// One thread's own rings. By one thread at a time.
typedef struct moonring_pair moonring_pair;

// How an engine ended.
typedef struct moonring_shutdown_report {
  // Ops that had their completion since the start.
  uint64_t completed;
  // Those of them that ended as shut down.
  uint64_t cancelled;
  // Ops in store calls that have not returned. Over 0: the engine's memory must stay mapped for as long as the process lives.
  uint64_t unreleased;
  // Pieces of the memory that the store did not unregister. Over 0: the same.
  uint64_t not_unregistered;
} moonring_shutdown_report;

// What a pair is to be. Set the fields by name, over zeros.
typedef struct moonring_pair_options {
  // The most ops in flight.
  size_t depth;
  // The pair's ops may wait for a fuller store call: until so many of their kind wait (of all pairs that do so; at most `max_batch`).
  // Below 2: none waits.
  size_t linger_ops;
  // But no longer than so many microseconds. 0: none waits.
  uint32_t linger_us;
} moonring_pair_options;

// What is asked for.
typedef struct moonring_op {
  // `MOONRING_LOOKUP`, `_RETRIEVE`, `_STORE` or `_DELETE`.
  uint8_t kind;
  // `MOONRING_FORCE`, `_EXACT`, `_BACKGROUND`.
  uint8_t flags;
  // Milliseconds that it may take; 0: as configured (`timeout_ms`).
  uint32_t timeout_ms;
  // 1 to `max_key` bytes without NUL. They are copied.
  const char *key;
  // Length of the key in bytes, without a NUL.
  size_t key_len;
  // Of retrieves and stores: in the engine's memory, or anywhere if the store needs no registration (tcp).
  uint8_t *buffer;
  // Length of the buffer in bytes.
  size_t buffer_len;
  // Comes back with the completion.
  uint64_t user_data;
} moonring_op;

// How an op ended.
typedef struct moonring_completion {
  // That of the op.
  uint64_t user_data;
  // A lookup: 1 or 0. A retrieve: the object's true length in bytes. A store: `MOONRING_ACCEPTED`, `_STORED` or
  // `_ALREADY_THERE`. With the status `MOONRING_STORE_CODE`: the store's code, sign-extended.
  uint64_t value;
  // `MOONRING_OK`, or why not. For a lookup any error means unknown, never "no".
  moonring_status status;
  // That of the op.
  uint8_t kind;
  // `MOONRING_MORE`, `MOONRING_RELEASE`.
  uint8_t flags;
} moonring_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread failed, as text: valid until its next call. Empty if none failed.
const char *moonring_last_error(void);

// The name of a status, as `not_found`; the names of ops' errors are those of the statistics. Never NULL.
const char *moonring_status_name(int status);

// Opens the store and starts an engine, over memory of the host's that buffers will lie in.
//
// `json`: LMCache's `--l2-adapter`, see docs/configuration.md. `memory` may be NULL (with `memory_len` 0) for a store that needs no
// registration. It stays the host's, who must keep it mapped until `moonring_shutdown` reports `unreleased` and
// `not_unregistered` 0, else for as long as the process lives.
//
// # Safety
// `json` must end in NUL; `memory` must be NULL, or `memory_len` mapped, readable and writable bytes.
moonring_status moonring_open(const char *json,
                              uint8_t *memory,
                              size_t memory_len,
                              struct moonring_engine **engine);

// Stops intake, executes (`drain` not 0) or cancels what is queued, and waits for store calls under way, `limit_ms` at most.
// `report` may be NULL. Harmless when called again.
//
// # Safety
// `engine` must be one that was opened and not closed.
moonring_status moonring_shutdown(const struct moonring_engine *engine,
                                  int drain,
                                  uint32_t limit_ms,
                                  struct moonring_shutdown_report *report);

// Frees the handle; an engine that was not shut down is, with what is queued cancelled, in 5 s at most. NULL is fine.
//
// # Safety
// `engine` must be one that was opened and not closed; nobody uses it any more. Pairs may outlive it.
void moonring_close(struct moonring_engine *engine);

// Rings for one thread, with at most `depth` ops in flight.
//
// # Safety
// `engine` must be one that was opened and not closed.
moonring_status moonring_pair_open(const struct moonring_engine *engine,
                                   size_t depth,
                                   struct moonring_pair **pair);

// As `moonring_pair_open`, with options. They are not kept.
//
// Ops that wait for a fuller call go along with whatever makes a call of their kind earlier, and at once while the engine shuts down
// or their kind's circuit is open; one with a timeout waits for half of it at most. Ops of other pairs never wait. When it is worth
// it: docs/merging.md.
//
// # Safety
// `engine` must be one that was opened and not closed; `options` NULL, or what it says.
moonring_status moonring_pair_open_with(const struct moonring_engine *engine,
                                        const struct moonring_pair_options *options,
                                        struct moonring_pair **pair);

// Frees a pair. Its ops go on; nobody hears of their ends, so keep their buffers until the engine is shut down. NULL is fine.
//
// # Safety
// `pair` must be one that was opened and not closed; nobody uses it any more.
void moonring_pair_close(struct moonring_pair *pair);

// Submits ops by one publication. The first that is refused ends it: the status tells why, and `accepted` how many before it
// were taken in. Those end with one completion each, and one release notice if that had `MOONRING_MORE`.
//
// # Safety
// `pair` must be open, and used by this thread alone; `ops` has `n` ops whose keys and buffers are as they say. From now until
// its release nobody else may access the buffer of a retrieve, nor write that of a store.
moonring_status moonring_submit(struct moonring_pair *pair,
                                const struct moonring_op *ops,
                                size_t n,
                                size_t *accepted);

// Reaps up to `n` completions, and returns how many. Never waits.
//
// # Safety
// `pair` must be open, and used by this thread alone; `completions` has room for `n`.
size_t moonring_poll(struct moonring_pair *pair, struct moonring_completion *completions, size_t n);

// Waits until `n` completions can be reaped, or all ops in flight if those are fewer; at most `timeout_ms`, or without a limit
// if that is negative.
//
// # Safety
// `pair` must be open, and used by this thread alone.
moonring_status moonring_wait(struct moonring_pair *pair,
                              size_t n,
                              int64_t timeout_ms);

// The pair's eventfd, to wait for in the host's own loop, or a negative status. It is the pair's: don't close it.
//
// # Safety
// `pair` must be open, and used by this thread alone.
int moonring_event_fd(struct moonring_pair *pair);

// Asks for one signal of the eventfd at the next completion. Call it after draining, before sleeping: 1: sleep; 0: there is something to
// reap, or the engine is shut down.
//
// # Safety
// `pair` must be open, and used by this thread alone.
int moonring_arm(struct moonring_pair *pair);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MOONRING_H */
