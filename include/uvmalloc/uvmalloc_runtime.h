/* A kind of device that a third party adds to uvmalloc by a table of operations in C. uvmalloc is
 * not rebuilt. C11 or C++. examples/custom_runtime/ is a small, complete device.
 *
 * There are two ways to add a table. If UVMALLOC_RUNTIME, or the runtime of uvmalloc_create(), is a
 * path (a value with a slash), uvmalloc opens that shared object and calls its uvmalloc_runtime().
 * A program that links with uvmalloc calls uvmalloc_register_runtime() of uvmalloc.h.
 *
 * Versions. The table begins with its own size and the version that it was written for. uvmalloc
 * copies it. New operations are added at the end, in optional groups, each with a new version. So a
 * runtime keeps working with a newer uvmalloc without a rebuild.
 *
 * Groups. A table has all operations of the required group. Of each optional group it has all
 * operations or none; missing operations are NULL.
 *
 * Errors. An operation returns 0 on success, else the vendor's own code, which is not 0.
 * error_kind() and error_name() translate the code.
 *
 * Threads. Any thread may call any operation at any time, with or without a current device. An
 * operation restores the current device, throws no exception and does not call uvmalloc.
 *
 * Devices are numbered from 0. uvmalloc names only devices that exist. A stream is the vendor's
 * handle. NULL is the device's default stream; UVMALLOC_RUNTIME_STREAM_PER_THREAD is the per-thread
 * stream of the calling thread. */
#ifndef UVMALLOC_UVMALLOC_RUNTIME_H
#define UVMALLOC_UVMALLOC_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table in this header. */
#define UVMALLOC_RUNTIME_VERSION 1

#define UVMALLOC_RUNTIME_STREAM_PER_THREAD ((void*)2)

/* A place for memory: a device's number, or UVMALLOC_RUNTIME_HOST. */
#define UVMALLOC_RUNTIME_HOST (-1)

/* The kinds of errors. */
typedef enum uvmalloc_runtime_error {
  UVMALLOC_RUNTIME_OK = 0,
  UVMALLOC_RUNTIME_NOT_READY = 1, /* a stream or event has pending work; this is not a failure */
  UVMALLOC_RUNTIME_OUT_OF_MEMORY = 2, /* only if the machine's memory is exhausted */
  UVMALLOC_RUNTIME_NOT_SUPPORTED = 3, /* this device or driver cannot do it */
  UVMALLOC_RUNTIME_INVALID_VALUE = 4, /* an argument is wrong */
  UVMALLOC_RUNTIME_NO_DEVICE = 5,     /* the device does not exist, or the machine has none */
  UVMALLOC_RUNTIME_NOT_USABLE = 6,    /* in a forked child, at exit, or before initialize() */
  UVMALLOC_RUNTIME_CAPTURE = 7,       /* refused because a stream is being captured */
  UVMALLOC_RUNTIME_OTHER = 8
} uvmalloc_runtime_error;

typedef enum uvmalloc_runtime_advice {
  UVMALLOC_RUNTIME_SET_READ_MOSTLY = 1,
  UVMALLOC_RUNTIME_UNSET_READ_MOSTLY = 2,
  UVMALLOC_RUNTIME_SET_PREFERRED_LOCATION = 3,
  UVMALLOC_RUNTIME_UNSET_PREFERRED_LOCATION = 4,
  UVMALLOC_RUNTIME_SET_ACCESSED_BY = 5,
  UVMALLOC_RUNTIME_UNSET_ACCESSED_BY = 6
} uvmalloc_runtime_advice;

typedef enum uvmalloc_runtime_pointer_kind {
  UVMALLOC_RUNTIME_POINTER_UNKNOWN = 0, /* memory that the vendor's driver does not know */
  UVMALLOC_RUNTIME_POINTER_HOST = 1,    /* page-locked memory of the host */
  UVMALLOC_RUNTIME_POINTER_DEVICE = 2,
  UVMALLOC_RUNTIME_POINTER_MANAGED = 3
} uvmalloc_runtime_pointer_kind;

/* The result of describe(). uvmalloc passes it zeroed, with struct_bytes set to its size. A runtime
 * that knows fewer members fills only those. Members named after a property are 0 or 1. uvmalloc
 * serves a device only if it has the first three properties. */
typedef struct uvmalloc_runtime_device {
  size_t struct_bytes;
  char name[256];
  uint64_t total_bytes;
  int32_t managed_memory;
  int32_t concurrent_managed_access; /* the host may use managed memory while the device works */
  int32_t migrates_on_fault;         /* pages of managed memory migrate to their user */
  int32_t pageable_memory_access;    /* the device can access ordinary host memory */
  int32_t host_page_tables;          /* the device uses the host's own page tables for that */
  int32_t direct_host_access;        /* the host reads managed memory on the device in place */
  int32_t integrated;                /* the device shares the host's memory */
  int32_t memory_is_host_node; /* its memory is a NUMA node that the host counts as host memory */
  int32_t discard;             /* the group "discard" works on this device */
  int32_t compute_major;
  int32_t compute_minor;
} uvmalloc_runtime_device;

typedef struct uvmalloc_runtime_pointer {
  int32_t kind;   /* a uvmalloc_runtime_pointer_kind */
  int32_t device; /* where the memory was allocated; -1: unknown */
} uvmalloc_runtime_pointer;

/* The table. Each operation gets `context`, the pointer that was registered with the table. */
typedef struct uvmalloc_runtime_operations {
  size_t struct_bytes; /* sizeof(uvmalloc_runtime_operations) */
  uint32_t version;    /* UVMALLOC_RUNTIME_VERSION */

  /* ---- required */

  /* Called once for each allocator, so possibly several times, before all other operations except
   * the group "presence". A failure is reported as the reason why there is no device. Nothing is
   * ever shut down: memory, streams and events may be used until the process ends. */
  int (*initialize)(void* context);
  /* Gets the number of devices: at least 1 if initialize() succeeded and there is a device. */
  int (*device_count)(void* context, int* out);
  int (*describe)(void* context, int device, uvmalloc_runtime_device* out);
  int (*memory_figures)(void* context, int device, uint64_t* free_bytes, uint64_t* total_bytes);
  /* Memory unknown to the driver is not an error: its kind is UVMALLOC_RUNTIME_POINTER_UNKNOWN. */
  int (*pointer_attributes)(void* context, const void* address, uvmalloc_runtime_pointer* out);

  /* Allocate and free memory that the host and devices access at one address. Allocations from 2
   * MiB on begin at a multiple of 2 MiB. The contents are undefined. A free may wait for the
   * device, and may run on a thread that has never used the device. Neither call disturbs a
   * capture. Freeing other memory returns a code of the kind UVMALLOC_RUNTIME_INVALID_VALUE. */
  int (*allocate_managed)(void* context, int device, size_t size_bytes, void** out);
  int (*free_managed)(void* context, int device, void* address);

  /* Copies, in stream order, between any two addresses that the device can access. */
  int (*copy)(void* context, int device, void* destination, const void* source, size_t size_bytes,
              void* stream);

  /* Non-blocking streams: the default stream does not synchronize with them. A stream that is
   * destroyed still completes its work. */
  int (*create_stream)(void* context, int device, void** out);
  int (*destroy_stream)(void* context, int device, void* stream);
  int (*synchronize_stream)(void* context, int device, void* stream);
  int (*stream_wait_event)(void* context, int device, void* stream, void* event);

  /* Events without timing. An event that was never recorded counts as complete. query_event()
   * returns 0 if the event is complete, or a code of the kind UVMALLOC_RUNTIME_NOT_READY. */
  int (*create_event)(void* context, int device, void** out);
  int (*destroy_event)(void* context, int device, void* event);
  int (*record_event)(void* context, int device, void* event, void* stream);
  int (*query_event)(void* context, int device, void* event);
  int (*synchronize_event)(void* context, int device, void* event);
  int (*synchronize_device)(void* context, int device);

  /* Return the kind (a uvmalloc_runtime_error) and the vendor's name of a code, for example
   * "CUDA_ERROR_OUT_OF_MEMORY". The name is in static storage. */
  int (*error_kind)(void* context, int code);
  const char* (*error_name)(void* context, int code);

  /* ---- hints: optional. Without them, pages stay where the device puts them. */

  /* `advice` is a uvmalloc_runtime_advice; `place` is a device or UVMALLOC_RUNTIME_HOST. A range is
   * inside one allocation, or in ordinary memory if the device can access ordinary memory. */
  int (*advise)(void* context, int device, void* address, size_t size_bytes, int advice, int place);
  /* Stream-ordered. May block the calling thread if the destination is the host. */
  int (*prefetch)(void* context, int device, void* address, size_t size_bytes, int destination,
                  void* stream);

  /* ---- discard: optional. Without it, uvmalloc gives memory back only by freeing it. */

  /* Stream-ordered: the contents become undefined. */
  int (*discard)(void* context, int device, void* address, size_t size_bytes, void* stream);

  /* ---- capture: optional. Without it no stream is ever captured. */

  /* Gets 1 if the stream is recording its work for later instead of executing it, else 0. */
  int (*is_capturing)(void* context, int device, void* stream, int* out);

  /* ---- contexts: optional. Without it a device accepts work at any time. */

  /* Returns 1 if the device accepts work without a new context, else 0. Changes nothing. */
  int (*has_context)(void* context, int device);

  /* ---- presence: optional. Without it, the driver counts as present; it counts as initialised if
   * a program names the runtime. */

  /* Return 1 or 0. Both are called often and must initialise nothing. */
  int (*is_present)(void* context);     /* this machine has the vendor's driver */
  int (*is_initialized)(void* context); /* the program has initialised the vendor's driver */
} uvmalloc_runtime_operations;

/* What uvmalloc_runtime() returns. This structure never changes. uvmalloc copies the name and the
 * table, so they need not be in static storage. */
typedef struct uvmalloc_runtime_registration {
  const char* name; /* not empty, without a slash, not "auto", not the name of another runtime */
  const uvmalloc_runtime_operations* operations;
  void* context;
} uvmalloc_runtime_registration;

/* The one function that a runtime's shared object exports. `newest_version` is the newest version
 * that the calling uvmalloc knows. A runtime for a newer uvmalloc may return a table of this older
 * version. Must not return NULL. The object is never unloaded. */
#define UVMALLOC_RUNTIME_EXPORT __attribute__((visibility("default")))
UVMALLOC_RUNTIME_EXPORT const uvmalloc_runtime_registration* uvmalloc_runtime(
    uint32_t newest_version);

#ifdef __cplusplus
}
#endif

#endif
