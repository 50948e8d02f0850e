/* The C interface of groups: named sets of blocks that sleep, wake and are described as a whole.
 * <uvmalloc/groups.hpp> defines groups. docs/reference/groups.md shows how to use them.
 *
 * The rules of <uvmalloc/uvmalloc.h> apply: functions are thread-safe and return a uvmalloc_status;
 * uvmalloc_last_error() returns the message of an error. Errors of all functions below:
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer is NULL, or the group does not exist.
 * UVMALLOC_ERROR_NOT_USABLE: this is a forked child. UVMALLOC_ERROR_NO_DEVICE: the device does not
 * exist. */
#ifndef UVMALLOC_GROUPS_H
#define UVMALLOC_GROUPS_H

#include <uvmalloc/uvmalloc.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t uvmalloc_group; /* a group of one allocator; never 0 */

/* Gets the group of that name, and makes it if it does not exist. A name has 1 to 64 characters:
 * letters, digits and "_", "-", ".", "/", ":"; others: UVMALLOC_ERROR_INVALID_ARGUMENT. After an
 * error *out is 0. */
UVMALLOC_API uvmalloc_status uvmalloc_group_open(uvmalloc_allocator* allocator, const char* name,
                                                 uvmalloc_group* out) UVMALLOC_NOEXCEPT;

/* Allocates device memory that belongs to the group. It is freed as any other. If the group has a
 * file, the memory can sleep there. Errors as of uvmalloc_allocate(). */
UVMALLOC_API uvmalloc_status uvmalloc_group_allocate(uvmalloc_allocator* allocator,
                                                     uvmalloc_group group, int device, size_t bytes,
                                                     uvmalloc_stream stream,
                                                     void** out) UVMALLOC_NOEXCEPT;
/* Puts the block that holds `address` into the group. A block is in one group at a time, and leaves
 * it when it is freed. UVMALLOC_ERROR_NOT_OURS: in no live block. */
UVMALLOC_API uvmalloc_status uvmalloc_group_add(uvmalloc_allocator* allocator, uvmalloc_group group,
                                                const void* address) UVMALLOC_NOEXCEPT;
/* Takes the block out of its group. UVMALLOC_ERROR_NOT_OURS: in no live block. */
UVMALLOC_API uvmalloc_status uvmalloc_group_remove(uvmalloc_allocator* allocator,
                                                   const void* address) UVMALLOC_NOEXCEPT;

typedef enum uvmalloc_group_copies {
  UVMALLOC_COPIES_AUTO = 0,
  UVMALLOC_COPIES_KEPT = 1,
  UVMALLOC_COPIES_NONE = 2
} uvmalloc_group_copies;

/* Members that are zero mean the defaults. */
typedef struct uvmalloc_group_options {
  size_t struct_bytes;
  int32_t priority;     /* if a group needs room, lower priorities sleep first */
  int32_t pinned;       /* 1: no other group makes it sleep */
  int32_t copies;       /* a uvmalloc_group_copies: whether the host keeps the bytes while awake */
  uint64_t limit_bytes; /* the most that wake() prefetches, at least 2 MiB; 0: no limit */
  uint64_t floor_bytes; /* stays on a device even if another group needs room */
  uint64_t idle_ms;     /* the group sleeps if nothing has used it for this long; 0: never */
  const char* file;     /* folder of the file in which uvmalloc_group_allocate()'s memory sleeps */
} uvmalloc_group_options;

UVMALLOC_API uvmalloc_status
uvmalloc_group_configure(uvmalloc_allocator* allocator, uvmalloc_group group,
                         const uvmalloc_group_options* options) UVMALLOC_NOEXCEPT;

typedef enum uvmalloc_group_flags {
  UVMALLOC_GROUP_DISCARD = 1, /* of sleep: the contents are discarded */
  UVMALLOC_GROUP_LAZILY = 2   /* of wake: all pages migrate when they are used */
} uvmalloc_group_flags;

/* Moves the group's pages from `device` to the host, after the current work of `stream`. With
 * UVMALLOC_GROUP_DISCARD, waits for the device and discards the contents. `out_bytes`, which may be
 * NULL, gets the bytes that are evicted. UVMALLOC_ERROR_INTERNAL: a stream is being captured. */
UVMALLOC_API uvmalloc_status uvmalloc_group_sleep(uvmalloc_allocator* allocator,
                                                  uvmalloc_group group, int device,
                                                  uvmalloc_stream stream, int flags,
                                                  uint64_t* out_bytes) UVMALLOC_NOEXCEPT;
/* Moves the group's pages back to `device`. Later work of `stream` waits for these pages. If the
 * order in which kernels use the pages is known, work waits only for the pages that it uses. If
 * there is no room, other groups sleep by their priorities. `out_bytes`, which may be NULL, gets
 * the bytes that are prefetched. UVMALLOC_ERROR_INTERNAL: a stream is being captured. */
UVMALLOC_API uvmalloc_status uvmalloc_group_wake(uvmalloc_allocator* allocator,
                                                 uvmalloc_group group, int device,
                                                 uvmalloc_stream stream, int flags,
                                                 uint64_t* out_bytes) UVMALLOC_NOEXCEPT;

typedef enum uvmalloc_group_state {
  UVMALLOC_GROUP_AWAKE = 0,
  UVMALLOC_GROUP_ASLEEP = 1,
  UVMALLOC_GROUP_DISCARDED = 2,
  UVMALLOC_GROUP_IN_FILE = 3
} uvmalloc_group_state;

typedef struct uvmalloc_group_info {
  size_t struct_bytes;
  int32_t state; /* a uvmalloc_group_state */
  uint64_t blocks;
  uint64_t bytes;        /* sum of the requested sizes of its blocks */
  uint64_t page_bytes;   /* size of the pages that the group moves */
  uint64_t device_bytes; /* part of these on devices, by the records of hints and moves */
  uint64_t host_bytes;
  uint64_t sleeps;
  uint64_t wakes;
  uint64_t kept_bytes;  /* sum over all sleeps: evicted without a copy (the host had the bytes) */
  uint64_t left_bytes;  /* sum over all sleeps: other evicted bytes */
  uint64_t idle_sleeps; /* sleeps because nothing used the group */
  uint64_t spill_bytes; /* part of page_bytes that a file can hold, if the group has one */
  uint64_t file_bytes;  /* part of page_bytes that is in a file */
} uvmalloc_group_info;

UVMALLOC_API uvmalloc_status uvmalloc_group_describe(uvmalloc_allocator* allocator,
                                                     uvmalloc_group group,
                                                     uvmalloc_group_info* out) UVMALLOC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
