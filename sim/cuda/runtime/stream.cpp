// Streams, and their capture.
#include <algorithm>

#include "sim/api/graphs.hpp"
#include "sim/api/kernel_plugin.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

cudaError_t create(int device, cudaStream_t* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
    return fail(cudaErrorInvalidValue);
  *out = static_cast<cudaStream_t>(
      machine().streams().create_stream(device, flags, (flags & cudaStreamNonBlocking) == 0,
                                        std::clamp(priority, kGreatestPriority, kLeastPriority)));
  return cudaSuccess;
}

// Writes a member of the stream. Returns an error if the handle is invalid.
template <class Value, class Member>
cudaError_t ask(int device, cudaStream_t stream, Value* out, Member Stream::*member) {
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  const auto found = machine().streams().find_stream(device, stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  *out = (*found).*member;
  return cudaSuccess;
}

}  // namespace

RT_API cudaStreamCreate(cudaStream_t* stream) {
  RT_ENTER_DEVICE;
  return create(device, stream, 0, 0);
}

RT_API cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  RT_ENTER_DEVICE;
  return create(device, stream, flags, 0);
}

RT_API cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  RT_ENTER_DEVICE;
  return create(device, stream, flags, priority);
}

RT_API cudaStreamDestroy(cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().destroy_stream(stream));
}

RT_API cudaStreamQuery(cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().query_stream(device, stream));
}

RT_API cudaStreamSynchronize(cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().wait_for_stream(device, stream));
}

RT_API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  RT_ENTER_DEVICE;
  EventScope scope{};
  const Status status = check_event_flags(flags, &scope);
  if (status != Status::kOk) return finish(status);
  return finish(machine().streams().make_stream_wait(device, stream, event, scope));
}

RT_API cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  RT_ENTER_DEVICE;
  return ask(device, stream, priority, &Stream::priority);
}

RT_API cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  RT_ENTER_DEVICE;
  return ask(device, stream, flags, &Stream::flags);
}

RT_API cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  RT_ENTER_DEVICE;
  return ask(device, stream, id, &Stream::id);
}

RT_API cudaStreamGetDevice(cudaStream_t stream, int* out_device) {
  RT_ENTER_DEVICE;
  return ask(device, stream, out_device, &Stream::device);
}

RT_API cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  RT_ENTER_DEVICE;
  return finish(begin_capture(device, stream, mode));
}

RT_API cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  RT_ENTER_DEVICE;
  if (graph == nullptr) return fail(cudaErrorInvalidValue);
  return finish(machine().graphs().end_capture(device, stream, reinterpret_cast<void**>(graph)));
}

RT_API cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  RT_ENTER_DEVICE;
  poll_kernel_plugin();
  return finish(capture_status(device, stream, reinterpret_cast<int*>(status)));
}

RT_API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  RT_ENTER;
  return finish(exchange_capture_mode(reinterpret_cast<int*>(mode)));
}

RT_API cudaStreamAttachMemAsync(cudaStream_t stream, void* address, size_t, unsigned) {
  RT_ENTER_DEVICE;
  const auto allocation = machine().memory().find(address);
  if (!allocation || allocation->kind != MemoryKind::kManaged) return fail(cudaErrorInvalidValue);
  return finish(machine().graphs().refuse_capture(device, stream));  // attaching has no effect with
                                                                     // concurrent access
}

// Like all work that is not captured, host functions run before the call returns, on the calling
// thread.
RT_API cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  RT_ENTER_DEVICE;
  if (function == nullptr) return fail(cudaErrorInvalidValue);
  return finish(machine().work().run_host_function(device, stream,
                                                   [function, argument] { function(argument); }));
}

RT_API cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* argument,
                             unsigned flags) {
  RT_ENTER_DEVICE;
  if (callback == nullptr || flags != 0) return fail(cudaErrorInvalidValue);
  const Status status = machine().graphs().refuse_capture(device, stream);
  if (status != Status::kOk) return finish(status);
  callback(stream, cudaSuccess, argument);
  return cudaSuccess;
}
