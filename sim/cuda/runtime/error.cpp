// Errors: the calling thread's last error, names and messages.
#include <utility>

#include "sim/cuda/common/errors.hpp"
#include "sim/cuda/common/visible_devices.hpp"
#include "sim/cuda/runtime/entry.hpp"
#include "sim/engine/initialization.hpp"
#include "sim/engine/thread_context.hpp"

namespace uvmsim::cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr const char* kUnknownError = "unrecognized error code";

cudaError_t error_of(Status status) {
  switch (status) {
    case Status::kOk:
      return cudaSuccess;
    case Status::kInvalidValue:
      return cudaErrorInvalidValue;
    case Status::kOutOfMemory:
      return cudaErrorMemoryAllocation;
    case Status::kNotInitialized:
      return cudaErrorInitializationError;
    case Status::kInvalidDevice:
      return cudaErrorInvalidDevice;
    case Status::kInvalidContext:
      return cudaErrorDeviceUninitialized;
    case Status::kInvalidHandle:
      return cudaErrorInvalidResourceHandle;
    case Status::kNotReady:
      return cudaErrorNotReady;
    case Status::kNotFound:
      return cudaErrorSymbolNotFound;
    case Status::kNotSupported:
      return cudaErrorNotSupported;
    case Status::kIllegalAddress:
      return cudaErrorIllegalAddress;
    case Status::kHostMemoryAlreadyRegistered:
      return cudaErrorHostMemoryAlreadyRegistered;
    case Status::kHostMemoryNotRegistered:
      return cudaErrorHostMemoryNotRegistered;
    case Status::kPeerAccessAlreadyEnabled:
      return cudaErrorPeerAccessAlreadyEnabled;
    case Status::kPeerAccessNotEnabled:
      return cudaErrorPeerAccessNotEnabled;
    case Status::kIllegalState:
      return cudaErrorIllegalState;
    case Status::kOperatingSystem:
      return cudaErrorOperatingSystem;
    case Status::kLaunchFailure:
      return cudaErrorLaunchFailure;
    case Status::kCaptureUnsupported:
      return cudaErrorStreamCaptureUnsupported;
    case Status::kCaptureInvalidated:
      return cudaErrorStreamCaptureInvalidated;
    case Status::kCaptureMerge:
      return cudaErrorStreamCaptureMerge;
    case Status::kCaptureUnmatched:
      return cudaErrorStreamCaptureUnmatched;
    case Status::kCaptureUnjoined:
      return cudaErrorStreamCaptureUnjoined;
    case Status::kCaptureIsolation:
      return cudaErrorStreamCaptureIsolation;
    case Status::kCaptureImplicit:
      return cudaErrorStreamCaptureImplicit;
    case Status::kCapturedEvent:
      return cudaErrorCapturedEvent;
    case Status::kCaptureWrongThread:
      return cudaErrorStreamCaptureWrongThread;
  }
  return cudaErrorUnknown;
}

}  // namespace

cudaError_t fail(cudaError_t error) {
  if (is_kept(error)) last_error = error;
  return error;
}

cudaError_t finish(Status status) {
  return fail(error_of(status));
}

int use_device() {
  if (visible_device_count() == 0) return -1;
  ThreadContext& thread = ThreadContext::current();
  // A primary context that has ended is created again.
  if (thread.context() == kNoContext || PrimaryContexts::has_ended(thread.context_number()))
    thread.choose_device(thread.device());
  return thread.device();
}

}  // namespace uvmsim::cuda

// Calls about errors work in a forked child too.
RT_API cudaGetLastError() {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return static_cast<cudaError_t>(*failure);
  return std::exchange(uvmsim::cuda::last_error, cudaSuccess);
}

RT_API cudaPeekAtLastError() {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return static_cast<cudaError_t>(*failure);
  return uvmsim::cuda::last_error;
}

RT_API_AS(const char*) cudaGetErrorName(cudaError_t error) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  const char* name = uvmsim::cuda::runtime_error_name(error);
  return name != nullptr ? name : uvmsim::cuda::kUnknownError;
}

RT_API_AS(const char*) cudaGetErrorString(cudaError_t error) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  const char* text = uvmsim::cuda::runtime_error_text(error);
  return text != nullptr ? text : uvmsim::cuda::kUnknownError;
}
