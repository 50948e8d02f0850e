/* uvmalloc for C, and for everything that calls C: one caching allocator for host, pinned and
 * device memory over unified memory. In libuvmalloc.so and libuvmalloc.a alike. C11 or C++.
 *
 * Allocators. A handle stands for one allocator with its own cache, budget and statistics.
 * uvmalloc_create() makes one; uvmalloc_process_allocator() gives the one that serves this process
 * when libuvmalloc.so is preloaded. In C++ a handle is a uvm::CachingManagedAllocator by address.
 *
 * Status. Functions that return uvmalloc_status do nothing unless they return UVMALLOC_OK, save
 * that results given by address are set to nothing (NULL). uvmalloc_last_error() says more.
 * Running out of memory is a status, never an abort. No function throws.
 *
 * Threads. Every function may be called from any thread at any time, with or without a current
 * device context, save that uvmalloc_destroy() must be the last call on its handle.
 *
 * Streams. A stream is the vendor's own handle (cudaStream_t, CUstream, hipStream_t); NULL is the
 * device's default stream. uvmalloc_forget_stream() comes before a stream that was named in a call
 * is destroyed: another may get its handle. The per-thread default stream is the calling thread's.
 *
 * Structures start with struct_bytes, which the caller sets to sizeof the structure. New members
 * are added at the end only, so that a program built against an older header keeps working, and
 * one built against a newer header finds in struct_bytes how much the library has filled in.
 *
 * Names and values in this header keep their meaning within a minor version: that of the library's
 * file name, libuvmalloc.so.MAJOR.MINOR. */
#ifndef UVMALLOC_UVMALLOC_H
#define UVMALLOC_UVMALLOC_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header. The build takes its version from here. */
#define UVMALLOC_VERSION_MAJOR 0
#define UVMALLOC_VERSION_MINOR 1
#define UVMALLOC_VERSION_PATCH 0
#define UVMALLOC_VERSION_TEXT_(major, minor, patch) #major "." #minor "." #patch
#define UVMALLOC_VERSION_TEXT(major, minor, patch) UVMALLOC_VERSION_TEXT_(major, minor, patch)
#define UVMALLOC_VERSION                                                \
  UVMALLOC_VERSION_TEXT(UVMALLOC_VERSION_MAJOR, UVMALLOC_VERSION_MINOR, \
                        UVMALLOC_VERSION_PATCH) /* "0.1.0" */
/* 1.2.3 is 10203. */
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
  UVMALLOC_ERROR_OUT_OF_MEMORY = 2,    /* by the budget or by the driver, after giving back what was
                                          cached; nothing already allocated is affected */
  UVMALLOC_ERROR_NO_DEVICE = 3,        /* no device of that number, or none at all */
  UVMALLOC_ERROR_NOT_USABLE = 4,  /* unified memory cannot be used here (a device without it, an
                                     allocator of its parent in a forked child) */
  UVMALLOC_ERROR_NOT_OURS = 5,    /* the address is in no block of this allocator */
  UVMALLOC_ERROR_DOUBLE_FREE = 6, /* the block is free already */
  UVMALLOC_ERROR_INTERIOR = 7,    /* inside a block, where its start is needed */
  UVMALLOC_ERROR_INTERNAL = 8
} uvmalloc_status;

/* What an allocation replaces. All of it is unified memory, which the host and devices reach at one
 * address; the facade decides where its pages are wanted at first and who is waited for. */
typedef enum uvmalloc_facade {
  UVMALLOC_HOST = 0,   /* pageable host memory */
  UVMALLOC_PINNED = 1, /* page-locked host memory */
  UVMALLOC_DEVICE = 2  /* memory of a device; ordered by its stream */
} uvmalloc_facade;

/* Places are device numbers, and these. */
#define UVMALLOC_PLACE_HOST (-1)
#define UVMALLOC_PLACE_NOWHERE (-2) /* in results only: nothing is known */

/* Who decides where pages are. */
typedef enum uvmalloc_policy {
  UVMALLOC_POLICY_AUTO = 0,   /* uvmalloc, by advice and prefetches */
  UVMALLOC_POLICY_DRIVER = 1, /* the driver alone: none are sent */
  UVMALLOC_POLICY_LRU = 2,    /* as AUTO; where memory is short, the page leaves that was used
                                 longest ago */
  UVMALLOC_POLICY_PLANNED = 3 /* as AUTO; it plans on where the program does not repeat a step */
} uvmalloc_policy;

/* ---- version and errors */

/* UVMALLOC_VERSION and UVMALLOC_VERSION_NUMBER of the library that is loaded. Static storage. */
UVMALLOC_API const char* uvmalloc_version(void) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_version_number(void) UVMALLOC_NOEXCEPT;

/* "UVMALLOC_ERROR_OUT_OF_MEMORY"; "unknown status" for a value that is none. Static storage. */
UVMALLOC_API const char* uvmalloc_status_name(int status) UVMALLOC_NOEXCEPT;

/* What the last call that failed on this thread had to say, for people; "" where none has. Valid
 * until the next call fails on this thread. */
UVMALLOC_API const char* uvmalloc_last_error(void) UVMALLOC_NOEXCEPT;

/* ---- allocators */

/* All zero but struct_bytes: the defaults. Variables (UVMALLOC_BUDGET and others) are not read, but
 * for UVMALLOC_RUNTIME if `runtime` is NULL. */
typedef struct uvmalloc_options {
  size_t struct_bytes;
  const char* runtime;    /* the kind of device by name, "cuda", or by the path of a shared object
                             (uvmalloc_runtime.h); NULL: UVMALLOC_RUNTIME, else the first that has
                             one */
  int32_t policy;         /* a uvmalloc_policy */
  uint64_t budget_bytes;  /* the most memory that may be in use at a time, at least 2 MiB; 0: by the
                             machine */
  uint64_t reserve_bytes; /* of each device's memory, left to others; 0: by the machine */
  uint64_t span_bytes; /* asked from the driver at a time, rounded up to 2 MiB; 0: by the device */
  uint64_t device_budget_bytes; /* uvmalloc_set_device_limit() of every device, at least 2 MiB; 0:
                                   none */
  double decay_seconds; /* half-life of cached memory that stays idle: half of it goes back to the
                           driver in each; 0: it stays until it is needed elsewhere or released */
} uvmalloc_options;

/* Makes an allocator on every device of a runtime. `options` NULL: the defaults.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: `out` is NULL, struct_bytes is too small for the first version
 * of the structure or above 4096, a member that this library does not know is not zero, no such
 * policy, a budget below 2 MiB, a decay that is negative or not finite.
 * UVMALLOC_ERROR_NO_DEVICE: no such runtime, or no driver, or no device.
 * UVMALLOC_ERROR_NOT_USABLE: managed memory of a device does not follow its use.
 * In a forked child an allocator of its parent is as the process's own
 * (uvmalloc_process_allocator()). A new one is UVMALLOC_ERROR_NO_DEVICE there if the parent has
 * used the driver: the child has no device. */
UVMALLOC_API uvmalloc_status uvmalloc_create(const uvmalloc_options* options,
                                             uvmalloc_allocator** out) UVMALLOC_NOEXCEPT;

/* Adds a kind of device by the table of operations that uvmalloc_runtime.h describes. From then on
 * `name` is a runtime for uvmalloc_options and UVMALLOC_RUNTIME, and "auto" tries it after those
 * that were there before. Name and table are copied; `context` is passed to each operation.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: the name is empty, "auto", taken, or has a slash; an operation
 * of the required group is missing, or a part of an optional one; the version is newer than that of
 * this library, or struct_bytes is not the size of its version. */
struct uvmalloc_runtime_operations;
UVMALLOC_API uvmalloc_status
uvmalloc_register_runtime(const char* name, const struct uvmalloc_runtime_operations* operations,
                          void* context) UVMALLOC_NOEXCEPT;

/* Waits for the devices and gives all memory back, in use or not. NULL is fine. A capture that the
 * allocator has not been told of may be invalidated, as by uvmalloc_release_cached().
 * UVMALLOC_ERROR_INVALID_ARGUMENT: the process's allocator, which is never destroyed. */
UVMALLOC_API uvmalloc_status uvmalloc_destroy(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* The allocator of this process, made on the first call by what its variables say
 * (docs/configuration.md). In a forked child it serves host memory from malloc, which can be freed
 * and nothing else. To functions that name an address everything is UVMALLOC_ERROR_NOT_OURS there,
 * but for uvmalloc_free() of a parent's block, which does nothing, and uvmalloc_describe().
 * UVMALLOC_ERROR_NOT_USABLE: there can be none, now or later. */
UVMALLOC_API uvmalloc_status uvmalloc_process_allocator(uvmalloc_allocator** out) UVMALLOC_NOEXCEPT;

/* Device memory of `device` may fill at most so many bytes of 2 MiB pages, cached blocks included;
 * UINT64_MAX: the budget alone decides. What it has already stays. Requests beyond it are
 * UVMALLOC_ERROR_OUT_OF_MEMORY. UVMALLOC_ERROR_NO_DEVICE. */
UVMALLOC_API uvmalloc_status uvmalloc_set_device_limit(uvmalloc_allocator* allocator, int device,
                                                       uint64_t most_bytes) UVMALLOC_NOEXCEPT;

/* `callback` is called with `argument` when a request cannot be met from what is cached or allowed.
 * It frees what the program can do without, and returns whether it freed anything (0: no).
 * Callbacks are called one by one, in the order in which they were added, before cached memory goes
 * back to the driver. The request is retried after each that freed something. They are called again
 * as long as one of them frees something and the request still fails. They are not called for a
 * request that is larger than the budget or the device's limit, since freeing cannot help it.
 * A callback runs on the thread of the request, without locks, and may call any function of this
 * interface. It may allocate: its thread calls no callback of this allocator meanwhile. Several
 * threads may call it at a time. It cannot be taken back.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a null pointer that is not `argument`. */
typedef int (*uvmalloc_pressure_callback)(void* argument);
UVMALLOC_API uvmalloc_status uvmalloc_add_pressure_callback(uvmalloc_allocator* allocator,
                                                            uvmalloc_pressure_callback callback,
                                                            void* argument) UVMALLOC_NOEXCEPT;

/* How many devices there are: they are numbered from 0. */
UVMALLOC_API uvmalloc_status uvmalloc_device_count(const uvmalloc_allocator* allocator,
                                                   int* out) UVMALLOC_NOEXCEPT;

/* ---- memory */

/* `size_bytes` bytes for `device` (host and pinned: the device that will access them). Contents are
 * undefined. UVMALLOC_DEVICE: to be used on `stream` at once, on others after they were made to
 * wait for it; host and pinned blocks belong to no stream, and no device works on them any more.
 * `alignment_bytes` is 0 for the default, 512 bytes (host and pinned: 2 MiB from 1 MiB on), or a
 * power of two up to 2 MiB; more than 512 makes a small host or pinned block take 2 MiB, and no
 * device block comes from a thread's cache then.
 * 0 bytes: UVMALLOC_OK and *out is NULL. SIZE_MAX bytes: UVMALLOC_ERROR_OUT_OF_MEMORY.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: `allocator` or `out` is NULL, no such facade, an alignment that
 * is not as above. UVMALLOC_ERROR_NO_DEVICE: no such device. UVMALLOC_ERROR_NOT_USABLE: a forked
 * child asks for device memory, or for an alignment above 512; or the driver fails for another
 * reason than that there is no memory. */
UVMALLOC_API uvmalloc_status uvmalloc_allocate(uvmalloc_allocator* allocator, int facade,
                                               int device, size_t size_bytes,
                                               size_t alignment_bytes, uvmalloc_stream stream,
                                               void** out) UVMALLOC_NOEXCEPT;

/* Gives a block back by its start. Work on it may be pending on the stream that it was allocated
 * for and on those recorded: it is not used again too early. NULL is fine.
 * UVMALLOC_ERROR_NOT_OURS, _DOUBLE_FREE, _INTERIOR: nothing is freed; the last two are logged. */
UVMALLOC_API uvmalloc_status uvmalloc_free(uvmalloc_allocator* allocator,
                                           void* address) UVMALLOC_NOEXCEPT;

/* `stream` of `device` works on the block that holds `address`: once freed, the block is not used
 * again before the work that is on the stream at the time of the free is over.
 * UVMALLOC_ERROR_NOT_OURS, UVMALLOC_ERROR_NO_DEVICE. */
UVMALLOC_API uvmalloc_status uvmalloc_record_use(uvmalloc_allocator* allocator, const void* address,
                                                 int device,
                                                 uvmalloc_stream stream) UVMALLOC_NOEXCEPT;

/* `stream` is about to get a kernel that uses the range, which lies in one block. `access` is 1 if
 * the kernel reads the range, 2 if it writes it, 3 for both. Add 4 if it touches each byte once at
 * most, without atomic operations: such memory may then stay on the host. The stream is of the
 * device where the block is in use. While a device has less memory than the program uses, uvmalloc
 * then moves memory ahead of its use (docs/oversubscription.md). Otherwise the call does nothing
 * and checks nothing but its pointers and `access`. It never changes contents.
 * UVMALLOC_ERROR_INVALID_ARGUMENT, UVMALLOC_ERROR_NOT_OURS. */
UVMALLOC_API uvmalloc_status uvmalloc_note_use(uvmalloc_allocator* allocator, const void* address,
                                               size_t size_bytes, uvmalloc_stream stream,
                                               int access) UVMALLOC_NOEXCEPT;

/* A range that a kernel uses, as in uvmalloc_note_use(). Its members stay as they are. */
typedef struct uvmalloc_use {
  const void* address;
  size_t size_bytes;
  int access;
} uvmalloc_use;

typedef enum uvmalloc_launch {
  UVMALLOC_LAUNCH_KERNEL = 0,
  UVMALLOC_LAUNCH_GRAPH = 1 /* a captured graph; nothing can be moved between its kernels */
} uvmalloc_launch;

/* The same for all `count` ranges of one kernel, or of all kernels of a graph in their order:
 * `launch` is a uvmalloc_launch. Each range lies in one block, and ranges may overlap. `stream` is
 * of the device where the block of the first range is in use; the others are in use there too. Call
 * it before each launch, by the thread that launches. A graph that is being captured launches
 * nothing yet: then the call does nothing. 0 ranges are fine.
 * UVMALLOC_ERROR_INVALID_ARGUMENT, also where `uses` is NULL and `count` is not 0;
 * UVMALLOC_ERROR_NOT_OURS: an address is in no live block, and nothing is noted. */
UVMALLOC_API uvmalloc_status uvmalloc_note_uses(uvmalloc_allocator* allocator,
                                                const uvmalloc_use* uses, size_t count,
                                                uvmalloc_stream stream,
                                                int launch) UVMALLOC_NOEXCEPT;

/* A step that the program repeats ends here. Steps are found without it too, later. */
UVMALLOC_API uvmalloc_status uvmalloc_step_boundary(uvmalloc_allocator* allocator)
    UVMALLOC_NOEXCEPT;

/* `stream` of `device` is about to be destroyed and gets no more work. The next stream of which
 * memory is asked for takes over what was cached for it, and starts after the work that it has so
 * far; where that cannot be had, since a stream is being captured, the memory is used again only
 * after the device was waited for, as are blocks of other streams that it worked on. A program that
 * preloads the library need not call it. UVMALLOC_ERROR_NO_DEVICE. */
UVMALLOC_API uvmalloc_status uvmalloc_forget_stream(uvmalloc_allocator* allocator, int device,
                                                    uvmalloc_stream stream) UVMALLOC_NOEXCEPT;

/* Waits until no stream that is known for the block works on it: before the host writes to it in
 * place. UVMALLOC_ERROR_NOT_OURS. UVMALLOC_ERROR_NOT_USABLE: a stream cannot be waited for, since
 * it is being captured. */
UVMALLOC_API uvmalloc_status uvmalloc_wait_for_uses(uvmalloc_allocator* allocator,
                                                    const void* address) UVMALLOC_NOEXCEPT;

/* Moves the block that holds `address` to `destination`, a device or UVMALLOC_PLACE_HOST, without
 * copying it to another address: its pages are advised and prefetched as the policy says. A hint
 * that fails is no error, and the block can be used everywhere before, meanwhile and after.
 * To a device: `stream` is the stream of it that will use the bytes; it is made to wait for the
 * prefetch, and counts as recorded. To the host: `stream` is the one, of the device where the block
 * is, that made the bytes, and counts as recorded; with `wait` the call returns when it and the
 * recorded streams are done with the block, so that the host may read; without, the pages follow
 * once it is. UVMALLOC_ERROR_NOT_OURS: in no live block. UVMALLOC_ERROR_NO_DEVICE: no such
 * destination. UVMALLOC_ERROR_NOT_USABLE: a stream cannot be waited for, since it is being
 * captured. */
UVMALLOC_API uvmalloc_status uvmalloc_move(uvmalloc_allocator* allocator, void* address,
                                           int destination, uvmalloc_stream stream,
                                           int wait) UVMALLOC_NOEXCEPT;

/* Gives all cached memory back: free 2 MiB pages are discarded where the device can, and whole
 * spans go back to the driver. Waits for blocks that were freed with work pending, and for the
 * devices: not while a stream is captured that the allocator has not been told of, which may
 * invalidate the capture. */
UVMALLOC_API uvmalloc_status uvmalloc_release_cached(uvmalloc_allocator* allocator)
    UVMALLOC_NOEXCEPT;

/* Gives back what of the idle cached memory is due by now, where decay_seconds (or UVMALLOC_DECAY)
 * is set. Requests and frees do that now and then: call it from a program that does nothing for
 * long. */
UVMALLOC_API uvmalloc_status uvmalloc_decay(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* ---- what is known */

typedef struct uvmalloc_block {
  size_t struct_bytes;
  void* base;
  uint64_t size_bytes; /* requested_bytes, rounded, and a little that nothing else could use */
  uint64_t requested_bytes;
  int32_t facade; /* a uvmalloc_facade */
  int32_t device;
  int32_t place;   /* where it is in use: a device, UVMALLOC_PLACE_HOST or _NOWHERE */
  int32_t live;    /* 1: allocated; 0: cached, or behind the work of a stream */
  int32_t movable; /* 1: it shares its first and last 2 MiB page at most */
} uvmalloc_block;

/* The block that holds `address`, which may be interior. UVMALLOC_ERROR_NOT_OURS: none does.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a null pointer, or struct_bytes is too small. */
UVMALLOC_API uvmalloc_status uvmalloc_describe(const uvmalloc_allocator* allocator,
                                               const void* address,
                                               uvmalloc_block* out) UVMALLOC_NOEXCEPT;

/* Of one facade on all devices. This structure never grows. */
typedef struct uvmalloc_facade_statistics {
  uint64_t allocations; /* since the start */
  uint64_t cache_hits;  /* of these, without new memory */
  uint64_t live_bytes;  /* as rounded */
  uint64_t peak_bytes;  /* since the start or the last reset of peaks; with several devices the sum
                           of the peaks on each, which can exceed that of all facades */
  uint64_t allocated_bytes; /* since the start */
} uvmalloc_facade_statistics;

typedef struct uvmalloc_statistics {
  size_t struct_bytes;
  uvmalloc_facade_statistics host;
  uvmalloc_facade_statistics pinned;
  uvmalloc_facade_statistics device;
  uint64_t live_bytes;    /* of all facades, as rounded */
  uint64_t peak_bytes;    /* of that, since the start */
  uint64_t touched_bytes; /* 2 MiB pages handed out since they were asked from the driver */
  uint64_t span_bytes;    /* asked from the driver: address space, not memory */
  uint64_t budget_bytes;
  uint64_t moves_to_devices;
  uint64_t moves_to_host;
  uint64_t moved_bytes;
  uint64_t prefetches;
  uint64_t advice;
  uint64_t out_of_memory; /* requests that were refused */
} uvmalloc_statistics;

/* All figures at one moment. UVMALLOC_ERROR_INVALID_ARGUMENT: a null pointer, or struct_bytes is
 * too small for the first version of the structure. */
UVMALLOC_API uvmalloc_status uvmalloc_get_statistics(const uvmalloc_allocator* allocator,
                                                     uvmalloc_statistics* out) UVMALLOC_NOEXCEPT;

/* The peaks of the facades begin anew at what is in use now; that of all facades together stays. */
UVMALLOC_API uvmalloc_status uvmalloc_reset_peaks(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* Begins a trace of everything that the allocator does (docs/trace.md) in `file`, whose former
 * content is lost; "%p" in the name is the process number. Blocks that are live come first.
 * UVMALLOC_ERROR_INVALID_ARGUMENT: a null pointer. UVMALLOC_ERROR_NOT_USABLE: the file is none that
 * can be written, a trace is being written already, or this is a forked child. */
UVMALLOC_API uvmalloc_status uvmalloc_start_trace(uvmalloc_allocator* allocator,
                                                  const char* file) UVMALLOC_NOEXCEPT;

/* Writes what threads still keep and ends the file; nothing where no trace is written. What other
 * threads do at this moment may be left out. uvmalloc_destroy() and the end of the process do the
 * same. */
UVMALLOC_API uvmalloc_status uvmalloc_stop_trace(uvmalloc_allocator* allocator) UVMALLOC_NOEXCEPT;

/* Writes `text`, UTF-8, into the trace, cut to 4096 bytes at the end of a character; nothing where
 * none is written. UVMALLOC_ERROR_INVALID_ARGUMENT: a null pointer, or an empty text. */
UVMALLOC_API uvmalloc_status uvmalloc_mark_trace(uvmalloc_allocator* allocator,
                                                 const char* text) UVMALLOC_NOEXCEPT;

/* ---- this process */

/* The report on the process's allocator so far (docs/report.md), and what this machine can do and
 * what is configured, as JSON. Copies as much as fits into `buffer` (which may be NULL), always
 * ended by NUL, and returns the bytes that all of it needs, NUL included; -1 on failure. */
UVMALLOC_API int64_t uvmalloc_report_json(char* buffer, size_t capacity_bytes) UVMALLOC_NOEXCEPT;
/* The same of a process that was to write its report to a folder (UVMALLOC_REPORT_DIR) and could
 * not: its figures are in `report.<pid>.figures` there, however it ended. -1: the file is no such
 * file of this version. */
UVMALLOC_API int64_t uvmalloc_report_json_of(const char* figures_file, char* buffer,
                                             size_t capacity_bytes) UVMALLOC_NOEXCEPT;
UVMALLOC_API int64_t uvmalloc_doctor_json(char* buffer, size_t capacity_bytes) UVMALLOC_NOEXCEPT;

/* uvmalloc_mark_trace() of the process's allocator. Nothing where no trace is written, where there
 * is no such allocator, or where `text` is NULL or empty. */
UVMALLOC_API void uvmalloc_trace_mark(const char* text) UVMALLOC_NOEXCEPT;

/* A range that a kernel uses: 1 it reads, 2 it writes, 3 both. */
typedef struct {
  const void* address;
  size_t size_bytes;
  int access;
} uvmalloc_trace_range;

/* A kernel, a copy or a fill that the program has put on a stream of a device, for the trace of the
 * process's allocator; nothing where none is written. With it the trace can be replayed on another
 * machine. `type` says what `amount` counts: operations of float64 (0), float32 (1),
 * tensor_float32 (2), float16 (3) or float8 (4); bytes that are copied to a device (252), to the
 * host (253) or inside a device (254); nanoseconds (255). The simulated device calls this itself.
 */
UVMALLOC_API void uvmalloc_trace_kernel(int device, const void* stream, uint64_t amount, int type,
                                        const uvmalloc_trace_range* ranges,
                                        size_t range_count) UVMALLOC_NOEXCEPT;

/* How the program orders its work, for the trace. `order` is -1: the event `signal` is recorded on
 * the stream. 0: the stream waits for the event. 1, 2, 3: the host waits for the event, the stream,
 * the device. */
UVMALLOC_API void uvmalloc_trace_order(int device, const void* stream, const void* signal,
                                       int order) UVMALLOC_NOEXCEPT;

/* Whether host memory that a framework allocates on this thread is managed from
 * UVMALLOC_HOST_THRESHOLD on (1, as at the start), comes from malloc (0), or is managed whatever
 * its size (2). Returns what was. */
UVMALLOC_API int uvmalloc_set_host_managed(int managed) UVMALLOC_NOEXCEPT;

/* RFC-0023's switch: 1 where unified memory is enabled for the framework in this process (PyTorch
 * with its plugin in place, and a device that can use managed memory), 0 otherwise: switched off,
 * not usable here, a forked child. torch.cuda.get_enabled_uvm() gives the same. Initialises
 * nothing: before the program has initialised the driver, 1 where the machine has a driver. */
UVMALLOC_API int uvmalloc_is_enabled(void) UVMALLOC_NOEXCEPT;

/* RFC-0023's enabled_uvm_move_on_copy: whether a move of a managed tensor to another device gives
 * the same memory (1) or behaves like a copy (0). At the start by UVMALLOC_MOVE. The first and the
 * last function return what was; the last one is for this thread alone, where 1 comes before what
 * the process has. */
UVMALLOC_API int uvmalloc_set_move_on_copy(int on) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_move_on_copy(void) UVMALLOC_NOEXCEPT;
UVMALLOC_API int uvmalloc_set_thread_move_on_copy(int on) UVMALLOC_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* UVMALLOC_UVMALLOC_H */
