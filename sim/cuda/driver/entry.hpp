// Macros that begin and end every entry point of the stand-in driver library. CU_API declares an
// entry point. The entry point starts with CU_ENTER_ANYTIME (counts the call, fails on demand and
// in a forked child), CU_ENTER (also fails before cuInit) or CU_ENTER_CONTEXT (also sets `device`
// to the current context's device).
//
// cuda.h renames several functions by macros. This header removes the macros, because the stand-in
// defines both names.
#pragma once

#include <cuda.h>

#include "sim/api/entry_point.hpp"
#include "sim/cuda/common/visible_devices.hpp"
#include "sim/engine/initialization.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/status.hpp"
#include "sim/engine/thread_context.hpp"

#undef cuCtxCreate
#undef cuCtxGetDevice
#undef cuCtxPopCurrent
#undef cuCtxPushCurrent
#undef cuCtxSynchronize
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
#undef cuDeviceGetUuid
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphGetEdges
#undef cuGraphInstantiate
#undef cuGraphKernelNodeGetParams
#undef cuGraphNodeGetDependencies
#undef cuGraphNodeGetDependentNodes
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuMemcpyBatchAsync
#undef cuStreamBeginCapture
#undef cuStreamDestroy
#undef cuStreamGetCaptureInfo
#undef cuStreamGetCtx
#undef cuStreamUpdateCaptureDependencies

namespace uvmsim::cuda {

using namespace api;

CUresult finish(Status status);

// context_of() returns the context with that number (a device's number for its primary context).
// device_of() returns the device of a context, or -1 for null or a foreign handle.
CUcontext context_of(int number);
int device_of(CUcontext context);
// Gets the device of the thread's current context. Fails if there is no current context or it has
// ended.
CUresult current_device(int* device);

inline Machine& machine() {
  return Machine::instance();
}

inline void* as_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace uvmsim::cuda

#define CU_API extern "C" UVMSIM_EXPORT CUresult

#define CU_ENTER_ANYTIME \
  UVMSIM_CALL_RECORD;    \
  if (const auto refused = uvmsim::cuda::refuse(call_record)) return static_cast<CUresult>(*refused)

#define CU_ENTER    \
  CU_ENTER_ANYTIME; \
  if (!uvmsim::is_initialized()) return CUDA_ERROR_NOT_INITIALIZED

#define CU_ENTER_CONTEXT                                                                   \
  CU_ENTER;                                                                                \
  int device = uvmsim::kNoContext;                                                         \
  if (const CUresult ended = uvmsim::cuda::current_device(&device); ended != CUDA_SUCCESS) \
  return ended
