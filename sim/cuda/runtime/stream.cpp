// Streams. There is no capture in this version: every stream answers that it is not capturing.
#include <algorithm>

#include <uvmalloc/sim/cuda/runtime/entry.hpp>
#include <uvmalloc/sim/cuda/runtime/kernel_plugin.hpp>

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

cudaError_t create(int device, cudaStream_t* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
    return fail(cudaErrorInvalidValue);
  *out = static_cast<cudaStream_t>(machine().create_stream(
      device, flags, (flags & cudaStreamNonBlocking) == 0, std::clamp(priority, -5, 0)));
  return cudaSuccess;
}

// Answers about a stream, or an invalid handle.
template <class Answer>
cudaError_t ask(int device, cudaStream_t stream, Answer answer) {
  const auto found = machine().find_stream(device, stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  answer(*found);
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
  return finish(machine().destroy_stream(stream));
}

RT_API cudaStreamQuery(cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().query_stream(device, stream));
}

RT_API cudaStreamSynchronize(cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().wait_for_stream(device, stream));
}

RT_API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  RT_ENTER_DEVICE;
  return finish(machine().make_stream_wait(device, stream, event));
}

RT_API cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  RT_ENTER_DEVICE;
  return ask(device, stream, [&](const Stream& found) { *priority = found.priority; });
}

RT_API cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  RT_ENTER_DEVICE;
  return ask(device, stream, [&](const Stream& found) { *flags = found.flags; });
}

RT_API cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  RT_ENTER_DEVICE;
  return ask(device, stream, [&](const Stream& found) { *id = found.id; });
}

RT_API cudaStreamGetDevice(cudaStream_t stream, int* out_device) {
  RT_ENTER_DEVICE;
  return ask(device, stream, [&](const Stream& found) { *out_device = found.device; });
}

RT_API cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  RT_ENTER_DEVICE;
  poll_kernel_plugin();
  return ask(device, stream, [&](const Stream&) { *status = cudaStreamCaptureStatusNone; });
}

RT_API cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                unsigned long long* id, cudaGraph_t* graph,
                                const cudaGraphNode_t** dependencies,
                                const cudaGraphEdgeData** edges, size_t* dependency_count) {
  RT_ENTER_DEVICE;
  return ask(device, stream, [&](const Stream&) {
    *status = cudaStreamCaptureStatusNone;
    if (id != nullptr) *id = 0;
    if (graph != nullptr) *graph = nullptr;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (dependency_count != nullptr) *dependency_count = 0;
  });
}

RT_API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  RT_ENTER;
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  if (mode == nullptr) return fail(cudaErrorInvalidValue);
  std::swap(*mode, current);
  return cudaSuccess;
}

RT_API cudaStreamAttachMemAsync(cudaStream_t stream, void* address, size_t, unsigned) {
  RT_ENTER_DEVICE;
  const auto allocation = machine().find(address);
  if (!allocation || allocation->kind != MemoryKind::kManaged) return fail(cudaErrorInvalidValue);
  return ask(device, stream, [](const Stream&) {});  // no effect with concurrent managed access
}

// Like all work, host functions take effect at once, on the calling thread, before the call
// returns.
RT_API cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  RT_ENTER_DEVICE;
  if (function == nullptr) return fail(cudaErrorInvalidValue);
  if (!machine().find_stream(device, stream)) return fail(cudaErrorInvalidResourceHandle);
  function(argument);
  return cudaSuccess;
}

RT_API cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* argument,
                             unsigned flags) {
  RT_ENTER_DEVICE;
  if (callback == nullptr || flags != 0) return fail(cudaErrorInvalidValue);
  if (!machine().find_stream(device, stream)) return fail(cudaErrorInvalidResourceHandle);
  callback(stream, cudaSuccess, argument);
  return cudaSuccess;
}
