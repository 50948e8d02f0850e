/* uvmalloc for C, and for all languages that can call C: one caching allocator for host, pinned and
 * device memory, based on unified memory. libuvmalloc.so and libuvmalloc.a both implement it. C11
 * or C++.
 *
 * Allocators. A handle stands for one allocator with its own cache, budget and statistics.
 * uvmalloc_create() makes one. uvmalloc_process_allocator() returns the allocator that serves this
 * process if libuvmalloc_preload.so is preloaded. In C++ a handle is the address of a
 * uvm::CachingManagedAllocator.
 *
 * Status. A function that returns a uvmalloc_status other than UVMALLOC_OK has done nothing, except
 * that it sets results given by address to zero (NULL). If a pointer to an allocator or a result is
 * NULL, the status is UVMALLOC_ERROR_INVALID_ARGUMENT. uvmalloc_last_error() describes the error.
 * Running out of memory is a status, never an abort. No function throws.
 *
 * Units. Sizes are in bytes. A page is 2 MiB.
 *
 * Threads. Any thread may call any function at any time, with or without a current device context.
 * Only uvmalloc_destroy() must be the last call with its handle.
 *
 * Streams. A stream is the vendor's own handle (cudaStream_t, CUstream, hipStream_t). NULL is the
 * device's default stream. The handle of the per-thread default stream means the stream of the
 * calling thread. Call uvmalloc_forget_stream() before a stream that a call has named is destroyed,
 * because another stream may get its handle.
 *
 * Structures start with struct_bytes, which the caller sets to sizeof the structure. New members
 * are added only at the end. So a program built against an older header keeps working, and a
 * program built against a newer header learns from struct_bytes how much the library has filled in.
 *
 * Names and values in this header keep their meaning within a minor version: that of the library's
 * file name, libuvmalloc.so.MAJOR.MINOR. */
#ifndef UVMALLOC_UVMALLOC_H
#define UVMALLOC_UVMALLOC_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header. The build reads its version here. */
#define UVMALLOC_VERSION_MAJOR 0
#define UVMALLOC_VERSION_MINOR 2
#define UVMALLOC_VERSION_PATCH 0
#define UVMALLOC_VERSION_TEXT_(major, minor, patch) #major "." #minor "." #patch
#define UVMALLOC_VERSION_TEXT(major, minor, patch) UVMALLOC_VERSION_TEXT_(major, minor, patch)
#define UVMALLOC_VERSION                                                \
  UVMALLOC_VERSION_TEXT(UVMALLOC_VERSION_MAJOR, UVMALLOC_VERSION_MINOR, \
                        UVMALLOC_VERSION_PATCH) /* "0.2.0" */
/* Version 1.2.3 is 10203. */
#define UVMALLOC_VERSION_NUMBER \
  (UVMALLOC_VERSION_MAJOR * 10000 + UVMALLOC_VERSION_MINOR * 100 + UVMALLOC_VERSION_PATCH)

#define UVMALLOC_API __attribute__((visibility("default")))
/* No exception leaves a function of this interface. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define UVMALLOC_NOEXCEPT noexcept
#else
#define UVMALLOC_NOEXCEPT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct uvmalloc_allocator uvmalloc_allocator;
typedef void* uvmalloc_stream;

typedef enum uvmalloc_status {
  UVMALLOC_OK = 0,
  UVMALLOC_ERROR_INVALID_ARGUMENT = 1, /* a null pointer, an alignment, a structure's size */
  UVMALLOC_ERROR_OUT_OF_MEMORY = 2, /* a limit or the driver refuses memory, after all cached memory
                                       was given back; blocks in use are not affected */
  UVMALLOC_ERROR_NO_DEVICE = 3,     /* the device does not exist, or the machine has none */
  UVMALLOC_ERROR_NOT_USABLE = 4,    /* unified memory cannot be used here: a device lacks it, or a
                                       forked child needs the device */
  UVMALLOC_ERROR_NOT_OURS = 5,      /* the address is in no block of this allocator */
  UVMALLOC_ERROR_DOUBLE_FREE = 6,   /* the block is already free */
  UVMALLOC_ERROR_INTERIOR = 7,      /* the address is inside a block, but must be its start */
  UVMALLOC_ERROR_INTERNAL = 8
} uvmalloc_status;

/* The memory kind of an allocation: the kind of memory that it replaces. All kinds are unified
 * memory, which the host and devices reach at one address. The kind decides where pages are placed
 * at first, and which streams a freed block waits for. */
typedef enum uvmalloc_facade {
  UVMALLOC_HOST = 0,   /* pageable host memory */
  UVMALLOC_PINNED = 1, /* page-locked host memory */
  UVMALLOC_DEVICE = 2  /* memory of a device; ordered by its stream */
} uvmalloc_facade;

/* A place is a device number or one of these. */
#define UVMALLOC_PLACE_HOST (-1)
#define UVMALLOC_PLACE_NOWHERE (-2) /* in results only: unknown */

/* The policy: who decides where pages are. */
typedef enum uvmalloc_policy {
  UVMALLOC_POLICY_AUTO = 0,   /* uvmalloc, by advice and prefetches */
  UVMALLOC_POLICY_DRIVER = 1, /* only the driver: no advice, no prefetches */
  UVMALLOC_POLICY_LRU = 2,    /* like AUTO; if memory is short, evicts the least recently used */
  UVMALLOC_POLICY_PLANNED = 3 /* like AUTO; plans even if the program repeats no step */
} uvmalloc_policy;

/* ---- version and errors */

/* Return UVMALLOC_VERSION and UVMALLOC_VERSION_NUMBER of the loaded library. Static storage. */
UVMALLOC_API const char* uvmalloc_version(void) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_version_number(void) UVMALLOC_NOEXCEPT;

/* Returns version, commit and compiler of the loaded library in one line: "0.2.0, commit ..., GCC
 * 12.2.0". The commit is "unknown" if the sources came without it. Static storage. */
UVMALLOC_API const char* uvmalloc_build_info(void) UVMALLOC_NOEXCEPT;

/* Returns the name of a status, such as "UVMALLOC_OK", or "unknown status". Static storage. */
UVMALLOC_API const char* uvmalloc_status_name(int status) UVMALLOC_NOEXCEPT;

/* Returns the message of the last call that failed on this thread, or "" if no call has failed. The
 * string is valid until the next call fails on this thread. */
UVMALLOC_API const char* uvmalloc_last_error(void) UVMALLOC_NOEXCEPT;

/* ---- allocators */

/* Members that are zero mean the defaults. Variables such as UVMALLOC_BUDGET are not read, except
 * UVMALLOC_RUNTIME if `runtime` is NULL. */
typedef struct uvmalloc_options {
  size_t struct_bytes;
  /* The kind of device: a name such as "cuda", or the path of a shared object (uvmalloc_runtime.h).
   * NULL: UVMALLOC_RUNTIME, or else the first kind that has a device. */
  const char* runtime;
  int32_t policy;        /* a uvmalloc_policy */
  uint64_t budget_bytes; /* the most memory in use at a time, at least 2 MiB; 0: from the machine */
  uint64_t reserve_bytes; /* left free on each device for other programs; 0: from the machine */
  uint64_t span_bytes;    /* reserved from the driver at a time, in 2 MiB pages; 0: by the device */
  uint64_t device_budget_bytes; /* as uvmalloc_set_device_limit() of each device, at least 2 MiB; 0:
                                   no limit */
  double decay_seconds; /* in each such half-life, half of the idle cached memory returns to the
                           driver; 0: it stays until it is needed or released */
} uvmalloc_options;

/* Makes an allocator on all devices of a runtime. If `options` is NULL, uses the defaults.
 *
 * Errors. UVMALLOC_ERROR_INVALID_ARGUMENT: `out` is NULL; struct_bytes is too small for the first
 * version of the structure, or above 4096; a member that this library does not know is not zero;
 * the policy is unknown; a budget is below 2 MiB; decay_seconds is negative or not finite.
 * UVMALLOC_ERROR_NO_DEVICE: the runtime, its driver or a device does not exist.
 * UVMALLOC_ERROR_NOT_USABLE: managed memory of a device does not migrate to its users.
 *
 * In a forked child an allocator of the parent behaves like the process's own allocator
 * (uvmalloc_process_allocator()). If the parent has used the driver, the child has no device, so
 * uvmalloc_create() returns UVMALLOC_ERROR_NO_DEVICE in the child. */
UVMALLOC_API uvmalloc_status uvmalloc_create(const uvmalloc_options* options,
                                             uvmalloc_allocator** out) UVMALLOC_NOEXCEPT;

/* Adds a kind of device, by the table of operations that uvmalloc_runtime.h describes. From then on
 * uvmalloc_options and UVMALLOC_RUNTIME accept `name`, and "auto" tries this kind after the kinds
 * that were added before. The name and the table are copied; `context` is passed to each operation.
 *
 * Errors. UVMALLOC_ERROR_INVALID_ARGUMENT: the name is empty, "auto", taken, or has a slash; an
 * operation of the required group is missing, or only a part of an optional group is set; the
 * version is newer than that of this library; or struct_bytes is not the size of that version. */
struct uvmalloc_runtime_operations;
UVMALLOC_API uvmalloc_status
uvmalloc_register_runtime(const char* name, const struct uvmalloc_runtime_operations* operations,
                          void* context) UVMALLOC_NOEXCEPT;

/* Waits for the devices and gives all memory back, even blocks in use. `allocator` may be NULL.
 * Like uvmalloc_release_cached(), this may invalidate a capture that uvmalloc was not notified of.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: `allocator` is the process's allocator, which is never
 * destroyed. */
UVMALLOC_API uvmalloc_status uvmalloc_destroy(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* Gets the allocator of this process. The first call makes it, configured by variables
 * (docs/settings.md). UVMALLOC_ERROR_NOT_USABLE: this process cannot have one, now or later.
 *
 * In a forked child the allocator serves host memory from malloc. The only operation on this memory
 * is uvmalloc_free(). In the child, other functions with an address argument return
 * UVMALLOC_ERROR_NOT_OURS, except uvmalloc_describe(). uvmalloc_free() of a parent's block does
 * nothing. */
UVMALLOC_API uvmalloc_status uvmalloc_process_allocator(uvmalloc_allocator** out) UVMALLOC_NOEXCEPT;

/* Changes the budget of a running allocator: the most bytes in use at a time, of all memory kinds.
 * From then on the budget no longer follows the machine. Lowering it frees no memory and does not
 * invalidate blocks: until less than the budget is in use, requests that need new pages return
 * UVMALLOC_ERROR_OUT_OF_MEMORY, except for one page of small objects of each memory kind and
 * device. Requests that cached memory can serve succeed. uvmalloc_release_cached() gives cached
 * memory back. UVMALLOC_ERROR_INVALID_ARGUMENT: the budget is below 2 MiB. */
UVMALLOC_API uvmalloc_status uvmalloc_set_budget(uvmalloc_allocator* allocator,
                                                 uint64_t most_bytes) UVMALLOC_NOEXCEPT;

/* Limits the bytes of 2 MiB pages that hold device memory of `device`, cached blocks included;
 * UINT64_MAX: only the budget applies. Lowering the limit frees no memory. Requests beyond the
 * limit: UVMALLOC_ERROR_OUT_OF_MEMORY. UVMALLOC_ERROR_NO_DEVICE: the device does not exist. */
UVMALLOC_API uvmalloc_status uvmalloc_set_device_limit(uvmalloc_allocator* allocator, int device,
                                                       uint64_t most_bytes) UVMALLOC_NOEXCEPT;

/* Adds a callback, which is called with `argument` if neither cached memory nor new memory within
 * the limits can serve a request. The callback should free memory that the program does not need,
 * and return whether it freed anything (0: no).
 *
 * Callbacks are called one by one, in the order in which they were added, before cached memory goes
 * back to the driver. The request is retried after each callback that freed something. All are
 * called again as long as one of them frees something and the request still fails. A request larger
 * than the budget or the device's limit calls no callback, because freeing memory cannot help it.
 *
 * A callback runs on the thread of the request, without locks, and may call any function of this
 * interface. It may allocate; its own requests call no callback of this allocator. Several threads
 * may call a callback at the same time. A callback cannot be removed.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer other than `argument` is NULL. */
typedef int (*uvmalloc_pressure_callback)(void* argument);
UVMALLOC_API uvmalloc_status uvmalloc_add_pressure_callback(uvmalloc_allocator* allocator,
                                                            uvmalloc_pressure_callback callback,
                                                            void* argument) UVMALLOC_NOEXCEPT;

/* Gets the number of devices, which are numbered from 0. */
UVMALLOC_API uvmalloc_status uvmalloc_device_count(const uvmalloc_allocator* allocator,
                                                   int* out) UVMALLOC_NOEXCEPT;

/* ---- memory */

/* Allocates `size_bytes` bytes; for 0 bytes sets *out to NULL. `facade` is a uvmalloc_facade.
 * `device` is the device that will access the memory. The contents are undefined.
 *
 * A device block may be used at once on `stream`, and on other streams after they wait for
 * `stream`. Host and pinned blocks belong to no stream. No device still works on a new host or
 * pinned block.
 *
 * `alignment_bytes` is a power of two up to 2 MiB, or 0 for the default: 512 bytes, but 2 MiB for
 * host and pinned blocks from 1 MiB on. With more than 512 bytes, a small host or pinned block
 * takes 2 MiB, and no device block comes from a thread's cache.
 *
 * Errors. UVMALLOC_ERROR_OUT_OF_MEMORY: memory is short; always for SIZE_MAX bytes.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: `allocator` or `out` is NULL, or the memory kind or the
 * alignment is not valid. UVMALLOC_ERROR_NO_DEVICE: the device does not exist.
 * UVMALLOC_ERROR_NOT_USABLE: a forked child requests device memory or an alignment above 512, or
 * the driver fails for a reason other than a lack of memory. */
UVMALLOC_API uvmalloc_status uvmalloc_allocate(uvmalloc_allocator* allocator, int facade,
                                               int device, size_t size_bytes,
                                               size_t alignment_bytes, uvmalloc_stream stream,
                                               void** out) UVMALLOC_NOEXCEPT;

/* Frees the block that starts at `address`, which may be NULL. Work may be pending on the block's
 * own stream and on recorded streams: the memory is not used again before that work is over.
 * UVMALLOC_ERROR_NOT_OURS, _DOUBLE_FREE, _INTERIOR: nothing is freed; the last two are logged. */
UVMALLOC_API uvmalloc_status uvmalloc_free(uvmalloc_allocator* allocator,
                                           void* address) UVMALLOC_NOEXCEPT;

/* Records that `stream` of `device` works on the block that holds `address`. A freed block is not
 * used again before the work that the stream had at the free is over. UVMALLOC_ERROR_NOT_OURS: the
 * address is in no live block. UVMALLOC_ERROR_NO_DEVICE: the device does not exist. */
UVMALLOC_API uvmalloc_status uvmalloc_record_use(uvmalloc_allocator* allocator, const void* address,
                                                 int device,
                                                 uvmalloc_stream stream) UVMALLOC_NOEXCEPT;

/* Call this before a kernel that uses the range is launched on `stream`. The range must be inside
 * one block. The stream belongs to the device that uses the block. `access` is 1 if the kernel
 * reads the range, 2 if the kernel writes it, 3 for both. Add 4 if the kernel touches each byte at
 * most once, without atomic operations: uvmalloc may then leave the memory on the host, and the
 * kernel accesses it over the link.
 *
 * While the program uses more memory than a device has, uvmalloc moves memory ahead of its use
 * (docs/reference/planning.md). At other times the call only checks its pointers and `access`. It
 * never changes contents. UVMALLOC_ERROR_INVALID_ARGUMENT: `access` is not valid.
 * UVMALLOC_ERROR_NOT_OURS: the address is in no live block. */
UVMALLOC_API uvmalloc_status uvmalloc_note_use(uvmalloc_allocator* allocator, const void* address,
                                               size_t size_bytes, uvmalloc_stream stream,
                                               int access) UVMALLOC_NOEXCEPT;

/* A range that a kernel uses, as in uvmalloc_note_use(). This structure never changes. */
typedef struct uvmalloc_use {
  const void* address;
  size_t size_bytes;
  int access;
} uvmalloc_use;

typedef enum uvmalloc_launch {
  UVMALLOC_LAUNCH_KERNEL = 0,
  UVMALLOC_LAUNCH_GRAPH = 1 /* a captured graph: nothing can be moved between its kernels */
} uvmalloc_launch;

/* Same as uvmalloc_note_use(), for all `count` ranges of one kernel, or of all kernels of a graph
 * in their order. `launch` is a uvmalloc_launch. Each range must be inside one block. Ranges may
 * overlap, and `count` may be 0. `stream` belongs to the device that uses the block of the first
 * range, and that device uses the other blocks too.
 *
 * Call this on the launching thread, before each launch. While a graph is captured, the call does
 * nothing, because nothing is launched. UVMALLOC_ERROR_INVALID_ARGUMENT: also if `uses` is NULL and
 * `count` is not 0. UVMALLOC_ERROR_NOT_OURS: an address is in no live block; nothing is noted. */
UVMALLOC_API uvmalloc_status uvmalloc_note_uses(uvmalloc_allocator* allocator,
                                                const uvmalloc_use* uses, size_t count,
                                                uvmalloc_stream stream,
                                                int launch) UVMALLOC_NOEXCEPT;

/* Marks the end of a step that the program repeats. Without marks, steps are detected later. */
UVMALLOC_API uvmalloc_status uvmalloc_step_boundary(uvmalloc_allocator* allocator)
    UVMALLOC_NOEXCEPT;

/* Call this before `stream` of `device` is destroyed; the stream must get no more work. The next
 * new stream takes over the memory cached for `stream`, and waits for the current work of `stream`.
 * If `stream` is being captured, no stream can wait for it. Then the allocator waits for the device
 * before it reuses that memory, or blocks of other streams that `stream` worked on. Not needed if
 * the library is preloaded. UVMALLOC_ERROR_NO_DEVICE: the device does not exist. */
UVMALLOC_API uvmalloc_status uvmalloc_forget_stream(uvmalloc_allocator* allocator, int device,
                                                    uvmalloc_stream stream) UVMALLOC_NOEXCEPT;

/* Waits until no recorded stream works on the block. Call this before the host writes to the block
 * in place. UVMALLOC_ERROR_NOT_OURS: the address is in no live block. UVMALLOC_ERROR_NOT_USABLE: a
 * stream cannot be waited for, for example because it is being captured. */
UVMALLOC_API uvmalloc_status uvmalloc_wait_for_uses(uvmalloc_allocator* allocator,
                                                    const void* address) UVMALLOC_NOEXCEPT;

/* Moves the block that holds `address` to `destination`, a device or UVMALLOC_PLACE_HOST. The
 * address stays the same: pages are advised and prefetched according to the policy. A hint that
 * fails is not an error. The block can be used everywhere before, during and after the move.
 *
 * For a move to a device, `stream` belongs to that device, waits for the prefetch, and will use the
 * bytes. For a move to the host, `stream` belongs to the device where the block is, and wrote the
 * bytes. In both cases `stream` counts as recorded. With `wait`, a call for a move to the host
 * returns when all recorded streams have finished with the block, so that the host may read.
 * Without `wait`, the pages move when the stream has finished.
 *
 * Errors. UVMALLOC_ERROR_NOT_OURS: the address is in no live block. UVMALLOC_ERROR_NO_DEVICE: the
 * destination does not exist. UVMALLOC_ERROR_OUT_OF_MEMORY: the device's limit has no room for the
 * block. UVMALLOC_ERROR_NOT_USABLE: as for uvmalloc_wait_for_uses(). */
UVMALLOC_API uvmalloc_status uvmalloc_move(uvmalloc_allocator* allocator, void* address,
                                           int destination, uvmalloc_stream stream,
                                           int wait) UVMALLOC_NOEXCEPT;

/* Gives all cached memory back: free 2 MiB pages are discarded if the device can do that, and empty
 * spans go back to the driver. Waits for the devices and for blocks freed with pending work. If
 * uvmalloc was not notified of a capture, the wait may invalidate that capture. */
UVMALLOC_API uvmalloc_status uvmalloc_release_cached(uvmalloc_allocator* allocator)
    UVMALLOC_NOEXCEPT;

/* Gives back the idle cached memory that is due by now, if decay_seconds (or UVMALLOC_DECAY) is
 * set. Requests and frees do that too, so only a program that is idle for a long time needs it. */
UVMALLOC_API uvmalloc_status uvmalloc_decay(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* ---- information */

typedef struct uvmalloc_block {
  size_t struct_bytes;
  void* base;
  uint64_t size_bytes; /* requested_bytes, rounded up, plus a remainder too small for a block */
  uint64_t requested_bytes;
  int32_t facade; /* a uvmalloc_facade */
  int32_t device;
  int32_t place;   /* where it is in use: a device, UVMALLOC_PLACE_HOST or _NOWHERE */
  int32_t live;    /* 1: allocated; 0: cached, or waiting for the work of a stream */
  int32_t movable; /* 1: it shares at most its first and last 2 MiB page with other blocks */
} uvmalloc_block;

/* Describes the block that holds `address`, which may be inside it. UVMALLOC_ERROR_NOT_OURS: in no
 * block. UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer is NULL, or struct_bytes is too small. */
UVMALLOC_API uvmalloc_status uvmalloc_describe(const uvmalloc_allocator* allocator,
                                               const void* address,
                                               uvmalloc_block* out) UVMALLOC_NOEXCEPT;

/* Gets the bytes of [address, address + size_bytes) that are at `place`: a device,
 * UVMALLOC_PLACE_HOST, or UVMALLOC_PLACE_NOWHERE for memory that was never touched. The range is
 * cut to the block that holds `address`. Without `exact`, counts whole 2 MiB pages, and a page is
 * where the last hint or move put it. With `exact`, the driver reports the place of each 64 KiB
 * (CUDA 13.4 and later); moves that streams have not executed yet are not seen.
 *
 * Errors. UVMALLOC_ERROR_NOT_OURS: the address is in no block, or this is a forked child.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: size_bytes is 0, or `out_bytes` is NULL.
 * UVMALLOC_ERROR_NO_DEVICE: `place` does not exist. UVMALLOC_ERROR_NOT_USABLE: with `exact`, the
 * driver does not report places. */
UVMALLOC_API uvmalloc_status uvmalloc_get_residency(const uvmalloc_allocator* allocator,
                                                    const void* address, size_t size_bytes,
                                                    int place, int exact,
                                                    uint64_t* out_bytes) UVMALLOC_NOEXCEPT;

/* Figures of one memory kind on all devices. This structure never grows. */
typedef struct uvmalloc_facade_statistics {
  uint64_t allocations; /* since the start */
  uint64_t cache_hits;  /* allocations served without new memory */
  uint64_t live_bytes;  /* rounded sizes */
  uint64_t peak_bytes;  /* since the start or the last reset of peaks; with several devices the sum
                           of their peaks, which can exceed the peak of all memory kinds */
  uint64_t allocated_bytes; /* since the start */
} uvmalloc_facade_statistics;

typedef struct uvmalloc_statistics {
  size_t struct_bytes;
  uvmalloc_facade_statistics host;
  uvmalloc_facade_statistics pinned;
  uvmalloc_facade_statistics device;
  uint64_t live_bytes;    /* of all memory kinds; rounded sizes */
  uint64_t peak_bytes;    /* of live_bytes, since the start */
  uint64_t touched_bytes; /* 2 MiB pages used since they were reserved, minus discarded ones */
  uint64_t span_bytes;    /* reserved from the driver: address space, not memory */
  uint64_t budget_bytes;
  uint64_t moves_to_devices;
  uint64_t moves_to_host;
  uint64_t moved_bytes;
  uint64_t prefetches;
  uint64_t advice;
  uint64_t out_of_memory; /* requests that were refused */
} uvmalloc_statistics;

/* Gets a snapshot of all figures. UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer is NULL, or
 * struct_bytes is too small for the first version of the structure. */
UVMALLOC_API uvmalloc_status uvmalloc_get_statistics(const uvmalloc_allocator* allocator,
                                                     uvmalloc_statistics* out) UVMALLOC_NOEXCEPT;

/* Restarts the peaks of the memory kinds at the bytes that are now in use. The peak of all kinds
 * together does not change. */
UVMALLOC_API uvmalloc_status uvmalloc_reset_peaks(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* Begins a trace of everything that the allocator does (docs/reference/trace.md) in `file`, which
 * is overwritten. "%p" in the name stands for the process ID. The trace lists live blocks first.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer is NULL. UVMALLOC_ERROR_NOT_USABLE: the file cannot be
 * written, a trace is already being written, or this is a forked child. */
UVMALLOC_API uvmalloc_status uvmalloc_start_trace(uvmalloc_allocator* allocator,
                                                  const char* file) UVMALLOC_NOEXCEPT;

/* Writes the events that threads have not written yet, and ends the trace file. Does nothing
 * without a trace. Events that other threads record during the call may be left out.
 * uvmalloc_destroy() and the end of the process do the same. */
UVMALLOC_API uvmalloc_status uvmalloc_stop_trace(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* Writes `text`, which is UTF-8, into the trace, cut to 4096 bytes at the end of a character. No-op
 * without a trace. UVMALLOC_ERROR_INVALID_ARGUMENT: a pointer is NULL, or the text is empty. */
UVMALLOC_API uvmalloc_status uvmalloc_mark_trace(uvmalloc_allocator* allocator,
                                                 const char* text) UVMALLOC_NOEXCEPT;

/* ---- this process */

/* Gets the current report on the process's allocator (docs/reference/report.md), as JSON. Copies as
 * much of the string as fits into `buffer`, always ended by NUL; `buffer` may be NULL. Returns the
 * bytes that the whole string needs, NUL included, or -1 on failure. */
UVMALLOC_API int64_t uvmalloc_report_json(char* buffer, size_t capacity_bytes) UVMALLOC_NOEXCEPT;
/* Same as uvmalloc_report_json(), for a process that ended without writing its report.
 * `figures_file` is the file `report.<pid>.figures` that the process left in UVMALLOC_REPORT_DIR.
 * Also returns -1 if this version cannot read the file. */
UVMALLOC_API int64_t uvmalloc_report_json_of(const char* figures_file, char* buffer,
                                             size_t capacity_bytes) UVMALLOC_NOEXCEPT;
/* Same as uvmalloc_report_json(), but gets what this machine can do and which settings apply. */
UVMALLOC_API int64_t uvmalloc_doctor_json(char* buffer, size_t capacity_bytes) UVMALLOC_NOEXCEPT;

/* Same as uvmalloc_mark_trace() for the process's allocator. Does nothing if there is no trace or
 * no such allocator, or if `text` is NULL or empty. */
UVMALLOC_API void uvmalloc_trace_mark(const char* text) UVMALLOC_NOEXCEPT;

/* A range that a kernel uses. `access`: 1 the kernel reads it, 2 the kernel writes it, 3 both. */
typedef struct {
  const void* address;
  size_t size_bytes;
  int access;
} uvmalloc_trace_range;

/* Records a kernel, a copy or a fill that the program has put on a stream of a device, so that the
 * trace can be replayed on another machine. Does nothing unless the process's allocator writes a
 * trace. The simulated device calls this itself.
 *
 * `type` is the unit of `amount`. Operations: float64 (0), float32 (1), tensor_float32 (2), float16
 * (3), float8 (4). Bytes copied: to a device (252), to the host (253), inside a device (254).
 * Nanoseconds: 255. */
UVMALLOC_API void uvmalloc_trace_kernel(int device, const void* stream, uint64_t amount, int type,
                                        const uvmalloc_trace_range* ranges,
                                        size_t range_count) UVMALLOC_NOEXCEPT;

/* Records in the trace of the process's allocator how the program orders its work. `order` says
 * what happens. -1: the event `signal` is recorded on the stream. 0: the stream waits for the
 * event. 1, 2, 3: the host waits for the event, the stream, the device. */
UVMALLOC_API void uvmalloc_trace_order(int device, const void* stream, const void* signal,
                                       int order) UVMALLOC_NOEXCEPT;

/* Sets which host memory a framework gets on this thread. 0: from malloc. 1, the initial value:
 * managed from UVMALLOC_HOST_THRESHOLD on. 2: managed at any size. Returns the previous value. */
UVMALLOC_API int uvmalloc_set_host_managed(int managed) UVMALLOC_NOEXCEPT;

/* The switch of PyTorch's RFC-0023. Returns 1 if unified memory is enabled for the framework in
 * this process: PyTorch with its plugin, and a device that can use managed memory. Returns 0 if
 * unified memory is switched off or not usable here, or in a forked child. Same as
 * torch.cuda.get_enabled_uvm(). Initialises nothing: until the program has initialised the driver,
 * returns 1 if the machine has a driver. */
UVMALLOC_API int uvmalloc_is_enabled(void) UVMALLOC_NOEXCEPT;

/* RFC-0023's enabled_uvm_move_on_copy: whether a move of a managed tensor to another device gives
 * the same memory (1) or behaves like a copy (0). UVMALLOC_MOVE sets the initial value. The two
 * setters return the previous value. The last function sets the value of this thread only: 1
 * overrides the value of the process. */
UVMALLOC_API int uvmalloc_set_move_on_copy(int on) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_move_on_copy(void) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_set_thread_move_on_copy(int on) UVMALLOC_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* UVMALLOC_UVMALLOC_H */
