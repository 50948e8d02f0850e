// Execution contexts, new in CUDA 13.1: a device's primary context, or a green context.
#include <algorithm>

#include "sim/cuda/common/green_contexts.hpp"

#include "sim/cuda/common/visible_devices.hpp"
#include "sim/cuda/runtime/entry.hpp"
#include "sim/engine/contexts.hpp"
#include "sim/engine/thread_context.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// Returns the device of an execution context; -1 if there is no such context.
int device_of(void* context) {
  const int number = Contexts::number_of(context);
  if (number == kNoContext) return -1;
  if (number < kMostDevices) return is_visible(number) ? number : -1;
  return Contexts::exists(number) ? number % kMostDevices : -1;
}

}  // namespace

RT_API cudaDeviceGetDevResource(int device, CUdevResource* resource, int type) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  return finish(whole_device(device, type, resource));
}

RT_API cudaDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count,
                                     const CUdevResource* input, CUdevResource* rest, unsigned,
                                     unsigned least) {
  RT_ENTER;
  return finish(split_by_count(groups, count, input, rest, least));
}

RT_API cudaDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* parts,
                                   unsigned count) {
  RT_ENTER;
  return finish(describe(parts, count, description));
}

RT_API cudaGreenCtxCreate(void** context, CUdevResourceDesc description, int device,
                          unsigned flags) {
  RT_ENTER;
  if (flags != 0) return fail(cudaErrorInvalidValue);
  return finish(create_green_context(device, description, context));
}

RT_API cudaExecutionCtxDestroy(void* context) {
  RT_ENTER;
  return finish(destroy_green_context(context));
}

RT_API cudaDeviceGetExecutionCtx(void** context, int device) {
  RT_ENTER;
  if (context == nullptr) return fail(cudaErrorInvalidValue);
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  PrimaryContexts::activate(device);
  *context = Contexts::handle_of(device);
  return cudaSuccess;
}

RT_API cudaExecutionCtxGetDevResource(void* context, CUdevResource* out, int type) {
  RT_ENTER;
  const int device = device_of(context);
  if (device < 0) return fail(cudaErrorInvalidResourceHandle);
  return finish(green_context_of(context) == kNoContext ? whole_device(device, type, out)
                                                        : part_of(context, type, out));
}

RT_API cudaExecutionCtxGetDevice(int* out, void* context) {
  RT_ENTER;
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  const int device = device_of(context);
  if (device < 0) return fail(cudaErrorInvalidResourceHandle);
  *out = device;
  return cudaSuccess;
}

RT_API cudaExecutionCtxGetId(void* context, unsigned long long* id) {
  RT_ENTER;
  if (id == nullptr) return fail(cudaErrorInvalidValue);
  if (device_of(context) < 0) return fail(cudaErrorInvalidResourceHandle);
  *id = static_cast<unsigned long long>(Contexts::number_of(context)) + 1;
  return cudaSuccess;
}

RT_API cudaExecutionCtxStreamCreate(cudaStream_t* stream, void* context, unsigned flags,
                                    int priority) {
  RT_ENTER;
  const int device = device_of(context);
  if (device < 0) return fail(cudaErrorInvalidResourceHandle);
  if (green_context_of(context) != kNoContext)
    return finish(create_green_stream(context, flags, priority, reinterpret_cast<void**>(stream)));
  if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
    return fail(cudaErrorInvalidValue);
  *stream = static_cast<cudaStream_t>(machine().streams().create_stream(
      device, flags, (flags & cudaStreamNonBlocking) == 0, std::clamp(priority, -5, 0)));
  return cudaSuccess;
}

RT_API cudaExecutionCtxSynchronize(void* context) {
  RT_ENTER;
  const int device = device_of(context);
  if (device < 0) return fail(cudaErrorInvalidResourceHandle);
  return finish(machine().streams().wait_for_device(device));
}
