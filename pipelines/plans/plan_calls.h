/* Storage plans for C and for Python's ctypes, in libuvmalloc_pipelines.so. A handle stands for one
 * StoragePlan (pipelines/plans/storage_plan.hpp), which never changes; several threads may use it.
 * Functions that can fail write a sentence to `error`, cut to `capacity` bytes with the final NUL.
 * No function throws. */
#ifndef UVMALLOC_PIPELINES_PLAN_CALLS_H
#define UVMALLOC_PIPELINES_PLAN_CALLS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct uvmalloc_plan uvmalloc_plan;

/* Makes a plan from a description in JSON (pipelines/plans/storage_plan_json.hpp). `effort`
 * multiplies the packer's number of steps; 1 is the default. Returns NULL on failure. */
uvmalloc_plan* uvmalloc_plan_make(const char* description, double effort, char* error,
                                  size_t capacity);
/* Reads a plan that uvmalloc_plan_to_json() wrote. Returns NULL on failure. */
uvmalloc_plan* uvmalloc_plan_from_json(const char* text, char* error, size_t capacity);
void uvmalloc_plan_destroy(uvmalloc_plan* plan);

/* Copies as much of the text as fits, ended by NUL. Returns the bytes that the whole text needs,
 * NUL included, or -1 if memory runs out. */
int64_t uvmalloc_plan_to_json(const uvmalloc_plan* plan, char* buffer, size_t capacity);

int64_t uvmalloc_plan_arena_bytes(const uvmalloc_plan* plan);
int64_t uvmalloc_plan_lower_bound_bytes(const uvmalloc_plan* plan);
size_t uvmalloc_plan_storage_count(const uvmalloc_plan* plan);
/* Both arrays have an element for each storage. */
void uvmalloc_plan_places(const uvmalloc_plan* plan, int64_t* offsets, int64_t* most_bytes);
/* Computes the size of each storage. `values` has an element for each variable; derived variables
 * are filled in. Returns 0, or -1 if a variable is outside its range or a size is negative. */
int uvmalloc_plan_sizes(const uvmalloc_plan* plan, int64_t* values, size_t value_count,
                        int64_t* sizes, char* error, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
