/* Control of the simulated machine.
 *
 * Programs reach the simulator through stand-ins for libcuda.so.1 and libcudart.so.13. This header
 * is for tests, for the kernels that run on the simulator, and for reports: capacity, residency,
 * counters, virtual time, failures on demand. It depends on no vendor. Link with libuvmsim.so, or
 * look up the names with dlsym. If a process has these names, its devices are simulated.
 *
 * All calls are thread-safe and may be made at any time. Unless its comment says otherwise, a call
 * does not count as a driver call and does not advance the virtual clock.
 *
 * Functions that return int return 0, or on failure a UVMSIM_ERROR_* value and change nothing. */
#ifndef UVMSIM_H
#define UVMSIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UVMSIM_HOST (-1) /* a location: host memory */

enum {
  UVMSIM_OK = 0,
  UVMSIM_ERROR_INVALID = 1,       /* an argument is out of range */
  UVMSIM_ERROR_OUT_OF_MEMORY = 2, /* device memory is exhausted by memory that cannot be evicted */
  UVMSIM_ERROR_ADDRESS = 3,       /* a kernel touched memory that its device cannot reach */
  UVMSIM_ERROR_CAPTURE = 4,       /* the rules of stream capture forbid it */
  UVMSIM_ERROR_LAUNCH = 5         /* the kernel itself failed */
};

/* ---- the machine */

/* Returns the value of UVMSIM_DEVICES (default 1). CUDA_VISIBLE_DEVICES does not reduce it. */
int uvmsim_device_count(void);

/* Checks whether `machine` is a valid value of UVMSIM_MACHINE: a name in profiles/ beside the
 * library, or a file. If not, `fault` gets a sentence, cut to `capacity` and ended by NUL. Makes no
 * machine. */
int uvmsim_check_machine(const char* machine, char* fault, size_t capacity);

/* Returns 1 in a forked child of the process that loaded the simulator, else 0. The threads of the
 * parent's CPU libraries do not exist in such a child. */
int uvmsim_is_forked_child(void);

/* Gets a device's memory: UVMSIM_CAPACITY (default 8 GiB; suffixes K, M, G, KiB, MiB, GiB, T). */
int uvmsim_capacity(int device, size_t* out_bytes);

/* Sets the memory of a device, at least 2 MiB. If more is in use, managed memory is evicted.
 * UVMSIM_ERROR_OUT_OF_MEMORY, and no change, if unevictable memory alone is larger. */
int uvmsim_set_capacity(int device, size_t bytes);

/* Gets a device's bytes in use: unevictable allocations, and 2 MiB chunks of managed memory. */
int uvmsim_used(int device, size_t* out_unevictable_bytes, size_t* out_managed_bytes);

/* Get and reset the peak of the bytes in use since the start or the last reset. */
int uvmsim_peak_used(int device, size_t* out_bytes);
int uvmsim_reset_peak_used(int device);

/* Gets the host memory that managed and pinned memory take, its limit (SIZE_MAX: none) and its
 * peak. A page keeps its host memory when it migrates to a device. Any pointer may be NULL. */
int uvmsim_host_used(size_t* out_capacity_bytes, size_t* out_used_bytes, size_t* out_peak_bytes);

/* Gets the bytes of host memory in use; 0 if this process has no machine yet. Makes no machine. */
int uvmsim_host_taken(size_t* out_bytes);

/* ---- kernels */

enum { UVMSIM_READ = 1, UVMSIM_WRITE = 2 };

typedef struct {
  const void* address; /* the program's address, not a device view (uvmsim_device_view) */
  size_t size_bytes;   /* a range of 0 bytes is ignored */
  int access;          /* UVMSIM_READ, UVMSIM_WRITE, or both */
} uvmsim_access;

/* Puts a kernel of `duration_ns` virtual nanoseconds that touches these ranges on `stream` (0, 1,
 * 2: the default streams) of `device`. The ranges become resident or mapped by the rules of unified
 * memory, and the stream's time advances. After the call, the caller does the work of the kernel
 * itself, at once, on the device views. Returns UVMSIM_ERROR_ADDRESS if the device cannot reach a
 * range: memory of another process, or plain host memory unless the profile allows it. */
int uvmsim_kernel(int device, void* stream, const uvmsim_access* accesses, size_t count,
                  uint64_t duration_ns);

/* The type of a kernel's operations. */
enum {
  UVMSIM_FLOAT64 = 0,
  UVMSIM_FLOAT32 = 1,
  UVMSIM_TENSOR_FLOAT32 = 2,
  UVMSIM_FLOAT16 = 3, /* and bfloat16 */
  UVMSIM_FLOAT8 = 4
};

/* Returns the virtual nanoseconds of a kernel by the machine's cost model: its launch, plus moving
 * `bytes` in device memory or computing `operations`, whichever is longer. 0: unknown type. */
uint64_t uvmsim_kernel_ns(uint64_t bytes, uint64_t operations, int type);

/* The operations that a kernel computes. */
typedef struct {
  uint64_t operations;
  int type;      /* UVMSIM_FLOAT64 and so on */
  int continues; /* nonzero: a part of a kernel already launched, so it has no launch time */
} uvmsim_arithmetic;

/* As uvmsim_kernel and uvmsim_launch, for a kernel that takes the time of the cost model:
 * uvmsim_kernel_ns for the bytes of its ranges. A range that is read and written counts twice. A
 * trace of uvmalloc keeps the operations, so that it can be replayed on other machines. */
int uvmsim_kernel_arithmetic(int device, void* stream, const uvmsim_access* accesses, size_t count,
                             const uvmsim_arithmetic* arithmetic);
int uvmsim_launch_arithmetic(int device, void* stream, const uvmsim_access* accesses, size_t count,
                             const uvmsim_arithmetic* arithmetic, int (*run)(void* context),
                             void (*release)(void* context), void* context);

/* As uvmsim_kernel, for a kernel that may become part of a graph. `run(context)` does its work on
 * the device views and returns 0, or another value if it failed. It is called once, before this
 * function returns. But if the stream is being captured, `run` is called at each launch of a graph
 * that holds the kernel, on the launching thread, after the ranges have been touched.
 *
 * `release(context)` is called once, when the kernel can no longer run, even if this function
 * fails. No lock is held during either call. uvmsim_kernel itself returns UVMSIM_ERROR_CAPTURE on a
 * stream that is being captured, because no graph could contain the work that its caller does. */
int uvmsim_launch(int device, void* stream, const uvmsim_access* accesses, size_t count,
                  uint64_t duration_ns, int (*run)(void* context), void (*release)(void* context),
                  void* context);

/* Returns the address at which a kernel finds the bytes of `address`. For managed and device
 * memory, this is the device view. For pinned and registered host memory, and for mapped ordinary
 * memory that devices reach, it is `address` itself. For other memory, returns NULL. A view is
 * valid while the allocation lives, and linear within the allocation. */
void* uvmsim_device_view(const void* address);

typedef struct {
  unsigned blocks[3];  /* x, y, z of the grid */
  unsigned threads[3]; /* of each block */
} uvmsim_grid;

/* A library that UVMSIM_KERNELS names may export this function, to run kernels that a program
 * launches with <<<>>>. It gets the kernel's mangled name and the addresses of the kernel's
 * arguments. It reports the memory that the kernel touches with uvmsim_kernel or uvmsim_launch,
 * does the work on the device views, and returns 0. It passes on errors of those two functions, and
 * returns UVMSIM_ERROR_INVALID if it does not know the kernel. */
int uvmsim_kernels_launch(const char* symbol, int device, void* stream, const uvmsim_grid* grid,
                          void** arguments);

/* The library may export this function too. It writes the sizes of the kernel's parameters in
 * bytes, in order and at most `capacity` of them. It returns their number, or -1 for an unknown
 * kernel. Needed for cuFuncGetParamInfo and for the arguments of nodes of captured graphs. */
int uvmsim_kernels_parameters(const char* symbol, size_t* sizes_bytes, size_t capacity);

/* ---- residency */

/* Gets the bytes of [address, address + size_bytes) that are resident at `location` (a device or
 * UVMSIM_HOST). Counts whole 4 KiB pages, cut to the range. A read-duplicated page is resident at
 * several locations. Returns UVMSIM_ERROR_INVALID if a part of the range is neither managed memory
 * nor ordinary memory that devices reach. */
int uvmsim_residency(const void* address, size_t size_bytes, int location, size_t* out_bytes);

/* Gets the advice in force for the page at `address`: the preferred location (a device,
 * UVMSIM_HOST, or -2 for none), a bit for each device in the accessed-by set (bit 63: the host),
 * and whether the page is read-mostly. */
int uvmsim_advice(const void* address, int* out_preferred, uint64_t* out_accessed_by,
                  int* out_read_mostly);

/* ---- counters */

typedef struct {
  uint64_t kernels;
  uint64_t managed_allocations, managed_frees;
  uint64_t device_allocations, device_frees;
  uint64_t pinned_allocations, pinned_frees;
  /* a batch counts once; one that discards and prefetches counts as both */
  uint64_t advice_calls, prefetch_calls, discard_calls;
  uint64_t copy_calls, copy_bytes; /* explicit copies in any direction */
  uint64_t fault_pages_device,
      fault_pages_host; /* 4 KiB pages made resident or mapped by a touch */
  uint64_t migrated_bytes_to_device, migrated_bytes_to_host, migrated_bytes_between_devices;
  uint64_t populated_bytes_device,
      populated_bytes_host; /* by a first touch or a prefetch of memory without pages */
  uint64_t evicted_chunks,
      evicted_bytes;            /* 2 MiB chunks evicted; bytes copied to the host for that */
  uint64_t remote_access_bytes; /* kernel accesses over the link, without migration */
  uint64_t unimplemented_calls;
  uint64_t graph_launches;
  uint64_t faults_device; /* faults that the driver served; pages that come along raise none */
  uint64_t speculative_pages_device; /* 4 KiB pages that came along with faulted pages */
  uint64_t throttles_device;         /* times that a device slept because pages thrash */
  uint64_t pinned_pages_device; /* 4 KiB pages used in place because they thrash, for each use */
} uvmsim_counters;

void uvmsim_get_counters(uvmsim_counters* out);
void uvmsim_reset_counters(void);

/* Returns how often the entry point `name` of a stand-in, such as "cuMemAdvise_v2", was called
 * since the start or the last uvmsim_reset_counters, whether it is implemented or not. */
uint64_t uvmsim_call_count(const char* name);

/* Calls `visit` for each entry point that was called but is not implemented. */
void uvmsim_each_unimplemented(void (*visit)(const char* name, uint64_t calls, void* context),
                               void* context);

/* ---- virtual time */

/* Return and advance the virtual time in nanoseconds since the start. Time advances when a host
 * thread waits for a stream or an event, and by uvmsim_advance_ns. Each query of an unfinished
 * stream or event takes 1,000 ns, so that polling ends. */
uint64_t uvmsim_now_ns(void);
void uvmsim_advance_ns(uint64_t nanoseconds);

/* ---- failures on demand */

/* Makes the `nth` call from now (1: the next) of the entry point `name` do nothing and return
 * `error`, once. `error` is a value of the error type of that interface. `nth` 0 cancels this. */
int uvmsim_fail_call(const char* name, uint64_t nth, int error);

#ifdef __cplusplus
}
#endif

#endif /* UVMSIM_H */
