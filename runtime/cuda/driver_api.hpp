// The entry points of the CUDA driver that uvmalloc uses, bound by name at run time from
// libcuda.so.1: one binary serves CUDA 12 and 13, programs with a static or shared runtime library,
// and machines without CUDA. Each one has a twin of the same meaning in HIP.
#pragma once

#include <memory>
#include <string>

#include <cuda.h>

namespace uvm::cuda {

// Two generations of the same call: with a location structure (driver 12.2 and later) or a device
// number.
using AdviseByLocation = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
using AdviseByDevice = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
using PrefetchByLocation = CUresult (*)(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
using PrefetchByDevice = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
using DiscardBatch = CUresult (*)(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream);

struct DriverApi {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_error_name)(CUresult, const char**) = nullptr;
  CUresult (*driver_get_version)(int*) = nullptr;
  CUresult (*device_get)(CUdevice*, int) = nullptr;
  CUresult (*device_get_count)(int*) = nullptr;
  CUresult (*device_get_name)(char*, int, CUdevice) = nullptr;
  CUresult (*device_get_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*device_total_mem)(size_t*, CUdevice) = nullptr;
  CUresult (*primary_ctx_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*primary_ctx_get_state)(CUdevice, unsigned*, int*) = nullptr;
  CUresult (*ctx_get_current)(CUcontext*) = nullptr;
  CUresult (*ctx_push_current)(CUcontext) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext*) = nullptr;
  CUresult (*ctx_synchronize)() = nullptr;
  CUresult (*mem_get_info)(size_t*, size_t*) = nullptr;
  CUresult (*mem_alloc_managed)(CUdeviceptr*, size_t, unsigned) = nullptr;
  CUresult (*mem_free)(CUdeviceptr) = nullptr;
  CUresult (*memcpy_async)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = nullptr;
  CUresult (*pointer_get_attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;
  CUresult (*stream_create)(CUstream*, unsigned) = nullptr;
  CUresult (*stream_destroy)(CUstream) = nullptr;
  CUresult (*stream_synchronize)(CUstream) = nullptr;
  CUresult (*stream_wait_event)(CUstream, CUevent, unsigned) = nullptr;
  CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;  // of the calling thread
  CUresult (*event_create)(CUevent*, unsigned) = nullptr;
  CUresult (*event_destroy)(CUevent) = nullptr;
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_query)(CUevent) = nullptr;
  CUresult (*event_synchronize)(CUevent) = nullptr;

  // Either generation; the newer one is preferred. At least one of each pair is bound.
  AdviseByLocation advise_by_location = nullptr;
  AdviseByDevice advise_by_device = nullptr;
  PrefetchByLocation prefetch_by_location = nullptr;
  PrefetchByDevice prefetch_by_device = nullptr;

  // Optional: driver 13.0 and later.
  DiscardBatch discard_batch = nullptr;
};

// Loads libcuda.so.1, binds and calls cuInit. nullptr, and one line in `*reason`, where the
// library, a required entry point or a device is missing. The library stays loaded for the life of
// the process.
std::unique_ptr<const DriverApi> bind_driver(std::string* reason);

// Whether cuInit has succeeded in this process. Loads and initialises nothing. False in a forked
// child of a process where it had.
bool is_driver_initialized();

// Whether libcuda.so.1 can be loaded, which this function then does. Does not call cuInit.
bool is_driver_present();

}  // namespace uvm::cuda
