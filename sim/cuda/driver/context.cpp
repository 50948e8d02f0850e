// Contexts. A context made by the program has its own memory, streams and events, and shares the
// device's default streams with the primary context. Each thread has a stack of current contexts.
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/driver/entry.hpp"
#include "sim/engine/contexts.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr std::size_t kDefaultLimitBytes = 1024;

// Returns the context's number, or -1 for null, a foreign handle, or a context that has ended.
// Primary contexts always exist.
int number_of(CUcontext context) {
  const int number = Contexts::number_of(context);
  if (number == kNoContext) return kNoContext;
  const bool exists = number < kMostDevices ? is_visible(number) : Contexts::exists(number);
  return exists ? number : kNoContext;
}

CUresult create_context(CUcontext* out, CUdevice device) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  const int number = Contexts::open(device, Contexts::Kind::kOrdinary);
  if (number == kNoContext) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!ThreadContext::current().push_context(number)) {
    Contexts::close(number);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  PrimaryContexts::open(device);
  *out = context_of(number);
  return CUDA_SUCCESS;
}

CUresult destroy_context(CUcontext context) {
  const int number = number_of(context);
  if (number < kMostDevices || Contexts::is_green(number)) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadContext& thread = ThreadContext::current();
  int popped = kNoContext;
  if (thread.context_number() == number) thread.pop_context(&popped);
  Contexts::close(number);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult uvmsim::cuda::current_device(int* device) {
  const int number = ThreadContext::current().context_number();
  if (number == kNoContext) return CUDA_ERROR_INVALID_CONTEXT;
  *device = number % kMostDevices;
  const bool exists =
      number < kMostDevices ? !PrimaryContexts::has_ended(number) : Contexts::exists(number);
  return exists ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUcontext uvmsim::cuda::context_of(int number) {
  return static_cast<CUcontext>(Contexts::handle_of(number));
}

int uvmsim::cuda::device_of(CUcontext context) {
  const int number = number_of(context);
  return number < 0 ? -1 : number % kMostDevices;
}

// ---- contexts that programs make

CU_API cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  CU_ENTER;
  return create_context(context, device);
}

CU_API cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned, CUdevice device) {
  CU_ENTER;
  return create_context(context, device);
}

CU_API cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice device) {
  CU_ENTER;
  return create_context(context, device);
}

CU_API cuCtxDestroy_v2(CUcontext context) {
  CU_ENTER;
  return destroy_context(context);
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
  const int number = ThreadContext::current().context_number();
  *context = number == kNoContext ? nullptr : context_of(number);
  return CUDA_SUCCESS;
}

CU_API cuCtxSetCurrent(CUcontext context) {
  CU_ENTER;
  if (context != nullptr && number_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadContext::current().set_context(context == nullptr ? kNoContext : number_of(context));
  return CUDA_SUCCESS;
}

CU_API cuCtxPushCurrent_v2(CUcontext context) {
  CU_ENTER;
  if (number_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const bool pushed = ThreadContext::current().push_context(number_of(context));
  return pushed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API cuCtxPopCurrent_v2(CUcontext* context) {
  CU_ENTER;
  int number = kNoContext;
  if (!ThreadContext::current().pop_context(&number)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = context_of(number);
  return CUDA_SUCCESS;
}

// ---- queries of the current context

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
  return finish(machine().streams().wait_for_device(device));
}

CU_API cuCtxGetFlags(unsigned* flags) {
  CU_ENTER_CONTEXT;
  *flags = 0;
  return device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API cuCtxGetId(CUcontext context, unsigned long long* id) {
  CU_ENTER;
  const int number =
      context == nullptr ? ThreadContext::current().context_number() : number_of(context);
  if (number < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *id = static_cast<unsigned long long>(number) + 1;
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
  return finish(machine().streams().wait_for_device(device));
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
  return finish(machine().memory().enable_peer_access(device, device_of(peer)));
}

CU_API cuCtxDisablePeerAccess(CUcontext peer) {
  CU_ENTER_CONTEXT;
  if (device_of(peer) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return finish(machine().memory().disable_peer_access(device, device_of(peer)));
}
