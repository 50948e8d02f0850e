/* Control of the simulated machine.
 *
 * The simulator answers programs through stand-ins for libcuda.so.1 and libcudart.so.13; this
 * header is the side door for tests, for the kernels that run on it and for reports: capacity,
 * residency, counters, virtual time, failures on demand. It names no vendor. All calls are
 * thread-safe and may be made at any time; none of them counts as a driver call or moves the
 * virtual clock unless it says so. Link with libuvmsim.so or look the names up with dlsym: their
 * presence in a process tells that its devices are simulated.
 *
 * Functions that return int return 0 on success and a UVMSIM_ERROR_* value otherwise; nothing is
 * changed then.
 */
#ifndef UVMSIM_H
#define UVMSIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UVMSIM_HOST (-1) /* a location that is no device: host memory */

enum {
  UVMSIM_OK = 0,
  UVMSIM_ERROR_INVALID = 1,       /* an argument is out of range */
  UVMSIM_ERROR_OUT_OF_MEMORY = 2, /* device memory is exhausted by memory that cannot be evicted */
  UVMSIM_ERROR_ADDRESS = 3,       /* a kernel touched memory that its device cannot reach */
  UVMSIM_ERROR_CAPTURE = 4,       /* the rules of stream capture forbid it */
  UVMSIM_ERROR_LAUNCH = 5         /* the kernel itself failed */
};

/* ---- the machine
 * -------------------------------------------------------------------------------------------- */

/* Devices, as set by UVMSIM_DEVICES (default 1), before CUDA_VISIBLE_DEVICES hides any. */
int uvmsim_device_count(void);

/* Whether UVMSIM_MACHINE could be `machine`: a name in profiles/ beside the library, or a file. On
 * failure `fault` gets a sentence, ended by NUL and cut to the capacity. Makes no machine. */
int uvmsim_check_machine(const char* machine, char* fault, size_t capacity);

/* 1 in a child by fork of the process that loaded the simulator, 0 elsewhere. The threads of the
 * parent's CPU libraries do not exist there. */
int uvmsim_is_forked_child(void);

/* Memory of a device in bytes, as set by UVMSIM_CAPACITY (default 8 GiB; suffixes K, M, G, KiB,
 * MiB, GiB, T). */
int uvmsim_capacity(int device, size_t* out_bytes);

/* Changes it. Shrinking below what is in use evicts managed memory; UVMSIM_ERROR_OUT_OF_MEMORY, and
 * no change, where unevictable memory alone is larger. The least is 2 MiB. */
int uvmsim_set_capacity(int device, size_t bytes);

/* Bytes of a device's memory in use: unevictable allocations and 2 MiB chunks held by managed
 * memory. */
int uvmsim_used(int device, size_t* out_unevictable_bytes, size_t* out_managed_bytes);

/* The most bytes in use at once since the start or the last reset. */
int uvmsim_peak_used(int device, size_t* out_bytes);
int uvmsim_reset_peak_used(int device);

/* Memory of the host that managed and pinned memory take, the limit on it (SIZE_MAX for none), and
 * the most at once. A page keeps its memory of the host when it migrates to a device. Any pointer
 * may be null. */
int uvmsim_host_used(size_t* out_capacity_bytes, size_t* out_used_bytes, size_t* out_peak_bytes);

/* The bytes in use alone. 0 where this process has no machine yet, which this call does not make.
 */
int uvmsim_host_taken(size_t* out_bytes);

/* ---- kernels
 * ------------------------------------------------------------------------------------------------
 */

enum { UVMSIM_READ = 1, UVMSIM_WRITE = 2 };

typedef struct {
  const void* address; /* as the program knows it, not a device view */
  size_t size_bytes;   /* 0: ignored */
  int access;          /* UVMSIM_READ, UVMSIM_WRITE, or both */
} uvmsim_access;

/* Tells the machine that a kernel of `duration_ns` virtual nanoseconds is put on `stream` (0, 1, 2:
 * the default streams) of `device` and touches these ranges; they become resident or mapped as
 * unified memory's rules say, and the stream's time line advances. The caller then does the work
 * itself, at once, on the device views. UVMSIM_ERROR_ADDRESS where a range is memory this device
 * cannot reach (plain host memory, unless the profile says otherwise; another process's). */
int uvmsim_kernel(int device, void* stream, const uvmsim_access* accesses, size_t count,
                  uint64_t duration_ns);

/* Types of a kernel's operations. */
enum {
  UVMSIM_FLOAT64 = 0,
  UVMSIM_FLOAT32 = 1,
  UVMSIM_TENSOR_FLOAT32 = 2,
  UVMSIM_FLOAT16 = 3, /* and bfloat16 */
  UVMSIM_FLOAT8 = 4
};

/* How long the machine's cost model says that a kernel takes, in virtual nanoseconds: its launch,
 * and the longer of moving `bytes` in device memory and of `operations`. 0 for a type that is none.
 */
uint64_t uvmsim_kernel_ns(uint64_t bytes, uint64_t operations, int type);

/* What a kernel computes. */
typedef struct {
  uint64_t operations;
  int type;      /* UVMSIM_FLOAT64 and so on */
  int continues; /* nonzero: a part of a kernel that has been launched, without a launch */
} uvmsim_arithmetic;

/* uvmsim_kernel and uvmsim_launch for a kernel whose time the cost model says: that of
 * uvmsim_kernel_ns for the bytes of its ranges, where a range that is read and written counts
 * twice. A trace of uvmalloc keeps the operations, so that it replays on other machines. */
int uvmsim_kernel_arithmetic(int device, void* stream, const uvmsim_access* accesses, size_t count,
                             const uvmsim_arithmetic* arithmetic);
int uvmsim_launch_arithmetic(int device, void* stream, const uvmsim_access* accesses, size_t count,
                             const uvmsim_arithmetic* arithmetic, int (*run)(void* context),
                             void (*release)(void* context), void* context);

/* uvmsim_kernel for a kernel that may become part of a graph: `run(context)` does its work on the
 * device views and returns 0, or anything else where it has failed. It is called once, before this
 * returns, or where the stream is being captured at each launch of a graph that holds it, by the
 * launching thread and after the ranges have been touched. `release(context)` is called once when
 * nothing can run it any more, also where this fails. Neither is called with a lock held.
 * uvmsim_kernel on a stream that is being captured answers UVMSIM_ERROR_CAPTURE, because the work
 * that its caller does would not be recorded. */
int uvmsim_launch(int device, void* stream, const uvmsim_access* accesses, size_t count,
                  uint64_t duration_ns, int (*run)(void* context), void (*release)(void* context),
                  void* context);

/* Where a kernel finds the bytes of `address`: the device view of managed and device memory, the
 * address itself for pinned and registered host memory and, where devices reach it, for mapped
 * ordinary memory; NULL for everything else. The view is valid
 * while the allocation lives, and linear within it. */
void* uvmsim_device_view(const void* address);

typedef struct {
  unsigned blocks[3];  /* x, y, z of the grid */
  unsigned threads[3]; /* of each block */
} uvmsim_grid;

/* What a library that UVMSIM_KERNELS names may export, to run kernels that a program launches with
 * <<<>>>. It gets the kernel's mangled name and the addresses of its arguments. It tells the
 * machine by uvmsim_kernel or uvmsim_launch which memory the kernel touches, does the work on the
 * device views, and returns 0. UVMSIM_ERROR_INVALID: it does not know this kernel. Errors of those
 * two functions are passed on. */
int uvmsim_kernels_launch(const char* symbol, int device, void* stream, const uvmsim_grid* grid,
                          void** arguments);

/* What it may export beside that: writes the sizes of the kernel's parameters in bytes, in their
 * order and not more than `capacity`, and returns their number; -1: it does not know this kernel.
 * The interfaces then tell the layout of the parameters (cuFuncGetParamInfo), and the arguments of
 * the nodes of captured graphs. */
int uvmsim_kernels_parameters(const char* symbol, size_t* sizes_bytes, size_t capacity);

/* ---- residency
 * ---------------------------------------------------------------------------------------------- */

/* Bytes of [address, address + size_bytes) resident at `location` (a device or UVMSIM_HOST),
 * counted in whole 4 KiB pages clipped to the range. A read-duplicated page is resident at several.
 * UVMSIM_ERROR_INVALID where the range is not wholly managed memory, or ordinary memory that
 * devices reach. */
int uvmsim_residency(const void* address, size_t size_bytes, int location, size_t* out_bytes);

/* What the advice in force says of the page at `address`: preferred location (a device,
 * UVMSIM_HOST, or -2 for none), a bit per device of the accessed-by set (bit 63: the host), and
 * whether it is read-mostly. */
int uvmsim_advice(const void* address, int* out_preferred, uint64_t* out_accessed_by,
                  int* out_read_mostly);

/* ---- counters
 * -----------------------------------------------------------------------------------------------
 */

typedef struct {
  uint64_t kernels;
  uint64_t managed_allocations, managed_frees;
  uint64_t device_allocations, device_frees;
  uint64_t pinned_allocations, pinned_frees;
  uint64_t advice_calls, prefetch_calls, discard_calls;
  uint64_t copy_calls, copy_bytes; /* explicit copies of any direction */
  uint64_t fault_pages_device,
      fault_pages_host; /* 4 KiB pages made resident or mapped by a touch */
  uint64_t migrated_bytes_to_device, migrated_bytes_to_host, migrated_bytes_between_devices;
  uint64_t populated_bytes_device,
      populated_bytes_host; /* first touch or prefetch of memory that was nowhere */
  uint64_t evicted_chunks,
      evicted_bytes;            /* 2 MiB chunks reclaimed; bytes copied to the host for it */
  uint64_t remote_access_bytes; /* kernel accesses served over the link without migration */
  uint64_t unimplemented_calls;
  uint64_t graph_launches;
  uint64_t faults_device; /* faults that the driver serviced: pages that others brought along raise
                             none */
  uint64_t speculative_pages_device; /* 4 KiB pages that came along with faulted ones */
  uint64_t throttles_device;         /* times that a device slept because pages thrash */
  uint64_t
      pinned_pages_device; /* 4 KiB pages used where they are because they thrash, at each use */
} uvmsim_counters;

void uvmsim_get_counters(uvmsim_counters* out);
void uvmsim_reset_counters(void);

/* How often an entry point of a stand-in was called by its exported name, for example
 * "cuMemAdvise_v2"; counted for all implemented and unimplemented ones since the start or the last
 * uvmsim_reset_counters. */
uint64_t uvmsim_call_count(const char* name);

/* Calls `visit` for each entry point that was called though the stand-in does not implement it. */
void uvmsim_each_unimplemented(void (*visit)(const char* name, uint64_t calls, void* context),
                               void* context);

/* ---- virtual time
 * ------------------------------------------------------------------------------------------- */

/* Virtual nanoseconds since the start. Time advances when a host thread waits for a stream or an
 * event, by 1,000 ns at each query of one that has not finished (so that polling ends), and by
 * uvmsim_advance. */
uint64_t uvmsim_now_ns(void);
void uvmsim_advance_ns(uint64_t nanoseconds);

/* ---- failures on demand
 * ------------------------------------------------------------------------------------- */

/* The `nth` call from now (1: the next) of the entry point `name` returns `error` (a value of that
 * interface's own error type) and does nothing; one shot. nth 0 removes it. */
int uvmsim_fail_call(const char* name, uint64_t nth, int error);

#ifdef __cplusplus
}
#endif

#endif /* UVMSIM_H */
