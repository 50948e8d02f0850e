// The entry points of the CUDA driver that uvmalloc uses, bound by name at run time. One binary
// serves all versions of the driver, programs with a static or shared runtime library, and machines
// without a driver. Each entry point has a row in hipify's table.
#pragma once

#include <memory>
#include <string>

#include <cuda.h>

#include "runtime/cuda/vendor.hpp"

namespace uvm::cuda {

#if UVMALLOC_CUDA_BY_LOCATION
// cuMemPrefetchBatchAsync and cuMemDiscardAndPrefetchBatchAsync.
using MoveBatch = CUresult(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                           unsigned long long, CUstream);
#endif

struct DriverApi {
  CUresult (*init)(unsigned) = nullptr;
  GetErrorName* get_error_name = nullptr;
  CUresult (*driver_get_version)(int*) = nullptr;
  CUresult (*device_get)(CUdevice*, int) = nullptr;
  CUresult (*device_get_count)(int*) = nullptr;
  CUresult (*device_get_name)(char*, int, CUdevice) = nullptr;
  CUresult (*device_get_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*device_total_mem)(size_t*, CUdevice) = nullptr;
  CUresult (*primary_ctx_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*primary_ctx_get_state)(CUdevice, unsigned*, int*) = nullptr;
  CUresult (*ctx_get_current)(CUcontext*) = nullptr;
  CUresult (*ctx_set_current)(CUcontext) = nullptr;
  CUresult (*ctx_push_current)(CUcontext) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext*) = nullptr;
  CUresult (*ctx_synchronize)() = nullptr;
  CUresult (*mem_get_info)(size_t*, size_t*) = nullptr;
  CUresult (*mem_alloc_managed)(CUdeviceptr*, size_t, unsigned) = nullptr;
  CUresult (*mem_free)(CUdeviceptr) = nullptr;
  CopyAsync* memcpy_async = nullptr;
  CUresult (*pointer_get_attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;
  CUresult (*stream_create)(CUstream*, unsigned) = nullptr;
  CUresult (*stream_destroy)(CUstream) = nullptr;
  CUresult (*stream_synchronize)(CUstream) = nullptr;
  CUresult (*stream_wait_event)(CUstream, CUevent, unsigned) = nullptr;
  CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;  // for the calling thread
  CUresult (*event_create)(CUevent*, unsigned) = nullptr;
  CUresult (*event_destroy)(CUevent) = nullptr;
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_query)(CUevent) = nullptr;
  CUresult (*event_synchronize)(CUevent) = nullptr;
  CUresult (*event_elapsed_time)(float*, CUevent, CUevent) = nullptr;

  // Two generations of the same call: by a location structure (newer, preferred) or by a device
  // number. At least one of each pair is bound.
#if UVMALLOC_CUDA_BY_LOCATION
  CUresult (*advise_by_location)(HintAddress, size_t, CUmem_advise, CUmemLocation) = nullptr;
  CUresult (*prefetch_by_location)(HintAddress, size_t, CUmemLocation, unsigned,
                                   CUstream) = nullptr;
  // Optional: CUDA 13.0 and later.
  MoveBatch* prefetch_batch = nullptr;
  MoveBatch* discard_and_prefetch_batch = nullptr;
  bool can_advise() const {
    return advise_by_location != nullptr || advise_by_device != nullptr;
  }
  bool can_prefetch() const {
    return prefetch_by_location != nullptr || prefetch_by_device != nullptr;
  }
#else
  bool can_advise() const {
    return advise_by_device != nullptr;
  }
  bool can_prefetch() const {
    return prefetch_by_device != nullptr;
  }
#endif
  CUresult (*advise_by_device)(HintAddress, size_t, CUmem_advise, CUdevice) = nullptr;
  CUresult (*prefetch_by_device)(HintAddress, size_t, CUdevice, CUstream) = nullptr;

  // Optional: some versions of the driver lack these calls.
  CUresult (*device_get_p2p_attribute)(int*, CUdevice_P2PAttribute, CUdevice, CUdevice) = nullptr;
  FindPages* find_pages = nullptr;
  CUresult (*discard_batch)(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream) = nullptr;
};

// Loads the driver's library, binds its entry points and calls cuInit. Returns nullptr, with one
// line in `*reason`, if the library, a required entry point or a device is missing. The library
// stays loaded for the life of the process.
std::unique_ptr<const DriverApi> bind_driver(std::string* reason);

// Loads the driver's library, and returns whether that worked. Does not call cuInit.
bool is_driver_present();

}  // namespace uvm::cuda
