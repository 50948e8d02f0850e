// Contexts, which HIP still supports for old programs. A context is a device. As in HIP, pushing
// and setting a context change the thread's device, and popping does not restore it.
#include <array>
#include <cstddef>

#include "sim/engine/thread_context.hpp"
#include "sim/hip/common/visible_devices.hpp"
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

// A context handle is the address of the element at its device's number.
std::array<char, kMostDevices> contexts;

class ContextStack {
 public:
  bool empty() const { return depth_ == 0; }
  bool is_full() const { return depth_ == devices_.size(); }
  int top() const { return devices_[depth_ - 1]; }
  void push(int device) { devices_[depth_++] = device; }
  void pop() { --depth_; }

 private:
  std::size_t depth_ = 0;
  std::array<int, 64> devices_{};
};

thread_local ContextStack context_stack;

hipCtx_t context_of(int device) {
  return reinterpret_cast<hipCtx_t>(&contexts[static_cast<std::size_t>(device)]);
}

// Returns -1 for a foreign handle.
int device_of(hipCtx_t context) {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(context) - reinterpret_cast<std::uintptr_t>(contexts.data());
  return offset < contexts.size() && is_visible(static_cast<int>(offset)) ? static_cast<int>(offset)
                                                                          : -1;
}

hipError_t push(int device) {
  if (context_stack.is_full()) return hipErrorOutOfMemory;
  context_stack.push(device);
  return hipSuccess;
}

}  // namespace

RT_API hipInit(unsigned flags) {
  RT_ENTER;
  if (flags != 0) return fail(hipErrorInvalidValue);
  return visible_device_count() == 0 ? fail(hipErrorNoDevice) : hipSuccess;
}

RT_API hipCtxCreate(hipCtx_t* context, unsigned, hipDevice_t device) {
  RT_ENTER;
  if (context == nullptr || !is_visible(device)) return fail(hipErrorInvalidValue);
  *context = context_of(device);
  return fail(push(device));
}

RT_API hipCtxDestroy(hipCtx_t context) {
  RT_ENTER;
  const int device = device_of(context);
  if (device < 0) return fail(hipErrorInvalidValue);
  if (!context_stack.empty() && context_stack.top() == device) context_stack.pop();
  return hipSuccess;
}

RT_API hipCtxGetCurrent(hipCtx_t* context) {
  RT_ENTER_DEVICE;
  if (context == nullptr) return fail(hipErrorInvalidValue);
  *context = context_of(device);
  return hipSuccess;
}

RT_API hipCtxSetCurrent(hipCtx_t context) {
  RT_ENTER;
  if (context != nullptr && device_of(context) < 0) return fail(hipErrorInvalidContext);
  if (!context_stack.empty()) context_stack.pop();
  if (context == nullptr) return hipSuccess;
  ThreadContext::current().choose_device(device_of(context));
  return fail(push(device_of(context)));
}

RT_API hipCtxPushCurrent(hipCtx_t context) {
  RT_ENTER;
  const int device = context == nullptr ? -1 : device_of(context);
  if (device < 0) return fail(hipErrorInvalidContext);
  ThreadContext::current().choose_device(device);
  return fail(push(device));
}

RT_API hipCtxPopCurrent(hipCtx_t* context) {
  RT_ENTER;
  if (context_stack.empty()) return fail(hipErrorInvalidContext);
  if (context != nullptr) *context = context_of(context_stack.top());
  context_stack.pop();
  return hipSuccess;
}

RT_API hipCtxGetDevice(hipDevice_t* out_device) {
  RT_ENTER_DEVICE;
  if (out_device == nullptr) return fail(hipErrorInvalidValue);
  *out_device = device;
  return hipSuccess;
}

// No version supports this call; programs use hipDeviceSynchronize.
RT_API hipCtxSynchronize() {
  RT_ENTER;
  return fail(hipErrorNotSupported);
}

RT_API hipDevicePrimaryCtxRetain(hipCtx_t* context, hipDevice_t device) {
  RT_ENTER;
  if (context == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  *context = context_of(device);
  return hipSuccess;
}

RT_API hipDevicePrimaryCtxRelease(hipDevice_t device) {
  RT_ENTER;
  return is_visible(device) ? hipSuccess : fail(hipErrorInvalidDevice);
}

RT_API hipDevicePrimaryCtxReset(hipDevice_t device) {
  RT_ENTER;
  return is_visible(device) ? hipSuccess : fail(hipErrorInvalidDevice);
}

RT_API hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned* flags, int* active) {
  RT_ENTER;
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = use_device() == device ? 1 : 0;
  return hipSuccess;
}
