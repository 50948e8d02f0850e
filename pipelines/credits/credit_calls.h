/* Credits for C and for Python's ctypes, in libuvmalloc_pipelines.so. A handle stands for one
 * CreditGate (pipelines/credits/credit_gate.hpp). Add actors and registers first, then call
 * uvmalloc_credits_open(); nothing can be added afterwards. Functions that can fail write a
 * sentence to `error`, cut to `capacity` bytes with the final NUL. No function throws. After
 * uvmalloc_credits_open() any thread may call any function, except uvmalloc_credits_destroy(),
 * which must be the last call. */
#ifndef UVMALLOC_PIPELINES_CREDIT_CALLS_H
#define UVMALLOC_PIPELINES_CREDIT_CALLS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct uvmalloc_credits uvmalloc_credits;

/* The results of uvmalloc_credits_start(). */
#define UVMALLOC_CREDITS_STARTED 1
#define UVMALLOC_CREDITS_OVER 0      /* no more inputs for the actor, or no reader of its output */
#define UVMALLOC_CREDITS_FAILED (-1) /* a wrong argument, or no memory */
#define UVMALLOC_CREDITS_LATE (-2)   /* an actor exceeded the timeout; `error` names it */
#define UVMALLOC_CREDITS_STOPPED (-3)

/* `memory_bytes` limits the bytes in all slots together; UINT64_MAX: only the quotas limit them.
 * Returns NULL if memory runs out. */
uvmalloc_credits* uvmalloc_credits_create(uint64_t memory_bytes);
void uvmalloc_credits_destroy(uvmalloc_credits* credits);

/* Both return the number of the new actor or register, or -1 on failure. */
int uvmalloc_credits_add_actor(uvmalloc_credits* credits, const char* name, char* error,
                               size_t capacity);
int uvmalloc_credits_add_register(uvmalloc_credits* credits, const char* name, int producer,
                                  const int* consumers, size_t consumer_count, uint64_t quota,
                                  uint64_t slot_bytes, char* error, size_t capacity);
/* Returns 0, or -1 if memory_bytes is too small for even one tensor to pass through all actors.
 * `timeout_seconds` 0: no timeout. */
int uvmalloc_credits_open(uvmalloc_credits* credits, double timeout_seconds, char* error,
                          size_t capacity);

/* Waits until the actor may act. `inputs` and `outputs` receive the numbers of the slots that the
 * actor reads and writes, in the order in which its registers were added. Both arrays must have
 * room for the numbers. */
int uvmalloc_credits_start(uvmalloc_credits* credits, int actor, uint64_t* inputs,
                           uint64_t* outputs, char* error, size_t capacity);
/* Waits until uvmalloc_credits_start() would return at once, but at most `seconds`. Returns 1 if
 * uvmalloc_credits_start() now would, 0 if not, -1 on failure. An interpreter can handle signals
 * between such waits. */
int uvmalloc_credits_wait(uvmalloc_credits* credits, int actor, double seconds, char* error,
                          size_t capacity);
/* Sets the size of the tensor that the register's producer has just made. Returns -1 if the size is
 * more than slot_bytes. */
int uvmalloc_credits_set_output_bytes(uvmalloc_credits* credits, int reg, uint64_t size_bytes,
                                      char* error, size_t capacity);
int uvmalloc_credits_finish(uvmalloc_credits* credits, int actor, char* error, size_t capacity);
int uvmalloc_credits_close(uvmalloc_credits* credits, int actor, char* error, size_t capacity);
int uvmalloc_credits_abandon(uvmalloc_credits* credits, int actor, char* error, size_t capacity);
void uvmalloc_credits_stop(uvmalloc_credits* credits, const char* reason);
uint64_t uvmalloc_credits_peak_bytes(const uvmalloc_credits* credits);
uint64_t uvmalloc_credits_held_bytes(const uvmalloc_credits* credits);

#ifdef __cplusplus
}
#endif
#endif
