// Errors of the driver interface, and callbacks for them.
#include <cstdint>
#include <mutex>
#include <set>

#include "sim/cuda/common/errors.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

CUresult uvmsim::cuda::finish(Status status) {
  switch (status) {
    case Status::kOk:
      return CUDA_SUCCESS;
    case Status::kInvalidValue:
      return CUDA_ERROR_INVALID_VALUE;
    case Status::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Status::kNotInitialized:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Status::kInvalidDevice:
      return CUDA_ERROR_INVALID_DEVICE;
    case Status::kInvalidContext:
      return CUDA_ERROR_INVALID_CONTEXT;
    case Status::kInvalidHandle:
      return CUDA_ERROR_INVALID_HANDLE;
    case Status::kNotReady:
      return CUDA_ERROR_NOT_READY;
    case Status::kNotFound:
      return CUDA_ERROR_NOT_FOUND;
    case Status::kNotSupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    case Status::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Status::kHostMemoryAlreadyRegistered:
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    case Status::kHostMemoryNotRegistered:
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    case Status::kPeerAccessAlreadyEnabled:
      return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    case Status::kPeerAccessNotEnabled:
      return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    case Status::kIllegalState:
      return CUDA_ERROR_ILLEGAL_STATE;
    case Status::kOperatingSystem:
      return CUDA_ERROR_OPERATING_SYSTEM;
    case Status::kLaunchFailure:
      return CUDA_ERROR_LAUNCH_FAILED;
    case Status::kCaptureUnsupported:
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case Status::kCaptureInvalidated:
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    case Status::kCaptureMerge:
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    case Status::kCaptureUnmatched:
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    case Status::kCaptureUnjoined:
      return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    case Status::kCaptureIsolation:
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    case Status::kCaptureImplicit:
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    case Status::kCapturedEvent:
      return CUDA_ERROR_CAPTURED_EVENT;
    case Status::kCaptureWrongThread:
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  return CUDA_ERROR_UNKNOWN;
}

// Names and texts are available in a forked child too.
CU_API cuGetErrorName(CUresult error, const char** text) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return static_cast<CUresult>(*failure);
  *text = driver_error_name(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API cuGetErrorString(CUresult error, const char** text) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return static_cast<CUresult>(*failure);
  *text = driver_error_text(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace {

std::mutex log_callbacks_mutex;
std::set<CUlogsCallbackHandle> log_callbacks;

}  // namespace

// The simulated driver keeps no log of errors: callbacks are accepted and not called.
CU_API cuLogsRegisterCallback(CUlogsCallback function, void*, CUlogsCallbackHandle* out) {
  CU_ENTER_ANYTIME;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(log_callbacks_mutex);
  static std::uintptr_t last = 0;
  auto* const handle = reinterpret_cast<CUlogsCallbackHandle>(++last);
  log_callbacks.insert(handle);
  if (out != nullptr) *out = handle;
  return CUDA_SUCCESS;
}

CU_API cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  CU_ENTER_ANYTIME;
  const std::lock_guard lock(log_callbacks_mutex);
  return log_callbacks.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
