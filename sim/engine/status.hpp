// Outcome of an engine operation. Every stand-in translates it into its own interface's error
// values.
#pragma once

namespace uvmsim {

enum class Status {
  kOk,
  kInvalidValue,
  kOutOfMemory,
  kNotInitialized,
  kInvalidDevice,
  kInvalidContext,
  kInvalidHandle,
  kNotReady,
  kNotFound,
  kNotSupported,
  kIllegalAddress,
  kHostMemoryAlreadyRegistered,
  kHostMemoryNotRegistered,
  kPeerAccessAlreadyEnabled,
  kPeerAccessNotEnabled,
  kIllegalState,
  kLaunchFailure,
  kOperatingSystem,
  // Rules of stream capture.
  kCaptureUnsupported,
  kCaptureInvalidated,
  kCaptureMerge,
  kCaptureUnmatched,
  kCaptureUnjoined,
  kCaptureIsolation,
  kCaptureImplicit,
  kCapturedEvent,
  kCaptureWrongThread,
};

}  // namespace uvmsim
