// Contexts. Each device has one, its primary context; the stack of current ones is the thread's.
#include <array>
#include <cstdint>

#include <uvmalloc/sim/cuda/common/version.hpp>
#include <uvmalloc/sim/cuda/driver/entry.hpp>

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr std::size_t kMostContexts = 64;
constexpr std::size_t kDefaultLimitBytes = 1024;

// A context is the address of an element.
std::array<char, kMostContexts> contexts;

}  // namespace

CUcontext uvmsim::cuda::context_of(int device) {
  return reinterpret_cast<CUcontext>(&contexts[static_cast<std::size_t>(device)]);
}

int uvmsim::cuda::device_of(CUcontext context) {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(context) - reinterpret_cast<std::uintptr_t>(contexts.data());
  return offset < static_cast<std::size_t>(visible_device_count()) ? static_cast<int>(offset) : -1;
}

// ---- primary contexts

CU_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CU_ENTER;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryContexts::retain(device);
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CU_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  return PrimaryContexts::release(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryContexts::reset(device);
  return CUDA_SUCCESS;
}

CU_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) {
  CU_ENTER;
  return is_visible(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CU_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = PrimaryContexts::is_active(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

// ---- the thread's stack

CU_API cuCtxGetCurrent(CUcontext* context) {
  CU_ENTER;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = ThreadContext::current().context();
  *context = device == kNoContext ? nullptr : context_of(device);
  return CUDA_SUCCESS;
}

CU_API cuCtxSetCurrent(CUcontext context) {
  CU_ENTER;
  if (context != nullptr && device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadContext::current().set_context(context == nullptr ? kNoContext : device_of(context));
  return CUDA_SUCCESS;
}

CU_API cuCtxPushCurrent_v2(CUcontext context) {
  CU_ENTER;
  if (device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadContext::current().push_context(device_of(context));
  return CUDA_SUCCESS;
}

CU_API cuCtxPopCurrent_v2(CUcontext* context) {
  CU_ENTER;
  int device = kNoContext;
  if (!ThreadContext::current().pop_context(&device)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = context_of(device);
  return CUDA_SUCCESS;
}

// ---- questions to the current context

CU_API cuCtxGetDevice(CUdevice* out_device) {
  CU_ENTER_CONTEXT;
  if (out_device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out_device = device;
  return CUDA_SUCCESS;
}

CU_API cuCtxGetDevice_v2(CUdevice* out_device, CUcontext context) {
  CU_ENTER;
  const int device = context == nullptr ? ThreadContext::current().context() : device_of(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (out_device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out_device = device;
  return CUDA_SUCCESS;
}

CU_API cuCtxSynchronize_v2(CUcontext context) {
  CU_ENTER;
  const int device = context == nullptr ? ThreadContext::current().context() : device_of(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return finish(machine().wait_for_device(device));
}

CU_API cuCtxGetFlags(unsigned* flags) {
  CU_ENTER_CONTEXT;
  *flags = 0;
  return device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API cuCtxGetId(CUcontext context, unsigned long long* id) {
  CU_ENTER;
  const int device = context == nullptr ? ThreadContext::current().context() : device_of(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *id = static_cast<unsigned long long>(device) + 1;
  return CUDA_SUCCESS;
}

CU_API cuCtxGetApiVersion(CUcontext context, unsigned* version) {
  CU_ENTER;
  if (context != nullptr && device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *version = static_cast<unsigned>(driver_version());
  return CUDA_SUCCESS;
}

CU_API cuCtxSynchronize() {
  CU_ENTER_CONTEXT;
  return finish(machine().wait_for_device(device));
}

CU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CU_ENTER_CONTEXT;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API cuCtxGetLimit(size_t* value, CUlimit) {
  CU_ENTER;
  if (ThreadContext::current().context() == kNoContext) return CUDA_ERROR_INVALID_CONTEXT;
  *value = kDefaultLimitBytes;
  return CUDA_SUCCESS;
}

CU_API cuCtxSetLimit(CUlimit, size_t) {
  CU_ENTER;
  return ThreadContext::current().context() == kNoContext ? CUDA_ERROR_INVALID_CONTEXT
                                                          : CUDA_SUCCESS;
}

CU_API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CU_ENTER_CONTEXT;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (device_of(peer) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return finish(machine().enable_peer_access(device, device_of(peer)));
}

CU_API cuCtxDisablePeerAccess(CUcontext peer) {
  CU_ENTER_CONTEXT;
  if (device_of(peer) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return finish(machine().disable_peer_access(device, device_of(peer)));
}
