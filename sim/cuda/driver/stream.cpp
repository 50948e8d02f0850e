// Streams, and their capture.
#include <algorithm>

#include "sim/api/graphs.hpp"
#include "sim/cuda/driver/entry.hpp"
#include "sim/engine/contexts.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

CUresult create(int device, CUstream* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *out = static_cast<CUstream>(machine().streams().create_stream(
      device, flags, (flags & CU_STREAM_NON_BLOCKING) == 0, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

// Calls `answer` with the stream. Returns an error if the handle is invalid.
template <class Answer>
CUresult ask(int device, CUstream stream, Answer answer) {
  const auto found = machine().streams().find_stream(device, stream);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  answer(*found);
  return CUDA_SUCCESS;
}

template <class... Pointer>
void write_nulls(Pointer*... out) {
  ((out != nullptr ? void(*out = {}) : void()), ...);
}

CUresult give_capture_info(int device, CUstream stream, CUstreamCaptureStatus* status,
                           cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                           size_t* count) {
  unsigned long long found_id = 0;
  const Status found = capture_info(device, stream,
                                    {.status = reinterpret_cast<int*>(status),
                                     .id = &found_id,
                                     .graph = reinterpret_cast<void**>(graph),
                                     .dependencies = reinterpret_cast<void* const**>(dependencies),
                                     .count = count});
  if (id != nullptr && found == Status::kOk) *id = found_id;
  return finish(found);
}

}  // namespace

CU_API cuStreamCreate(CUstream* stream, unsigned flags) {
  CU_ENTER_CONTEXT;
  return create(device, stream, flags, 0);
}

CU_API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  CU_ENTER_CONTEXT;
  return create(device, stream, flags, priority);
}

CU_API cuStreamDestroy_v2(CUstream stream) {
  CU_ENTER;
  return finish(machine().streams().destroy_stream(stream));
}

CU_API cuStreamQuery(CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(machine().streams().query_stream(device, stream));
}

CU_API cuStreamSynchronize(CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(machine().streams().wait_for_stream(device, stream));
}

CU_API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CU_ENTER_CONTEXT;
  EventScope scope{};
  const Status status = check_event_flags(flags, &scope);
  if (status != Status::kOk) return finish(status);
  return finish(machine().streams().make_stream_wait(device, stream, event, scope));
}

CU_API cuStreamGetPriority(CUstream stream, int* priority) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) { *priority = found.priority; });
}

CU_API cuStreamGetFlags(CUstream stream, unsigned* flags) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) { *flags = found.flags; });
}

CU_API cuStreamGetId(CUstream stream, unsigned long long* id) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) { *id = found.id; });
}

CU_API cuStreamGetDevice(CUstream stream, CUdevice* out_device) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) { *out_device = found.device; });
}

CU_API cuStreamGetCtx(CUstream stream, CUcontext* context) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) {
    *context = context_of(Contexts::is_green(found.context) ? found.context : found.device);
  });
}

CU_API cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  CU_ENTER_CONTEXT;
  return ask(device, stream, [&](const Stream& found) {
    *context = context_of(found.device);
    write_nulls(green);
    if (green != nullptr && Contexts::is_green(found.context))
      *green = static_cast<CUgreenCtx>(Contexts::handle_of(found.context));
  });
}

CU_API cuStreamBeginCapture(CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(begin_capture(device, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

CU_API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  CU_ENTER_CONTEXT;
  return finish(begin_capture(device, stream, mode));
}

CU_API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  CU_ENTER_CONTEXT;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().graphs().end_capture(device, stream, reinterpret_cast<void**>(graph)));
}

CU_API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  CU_ENTER_CONTEXT;
  return finish(capture_status(device, stream, reinterpret_cast<int*>(status)));
}

CU_API cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  CU_ENTER_CONTEXT;
  return give_capture_info(device, stream, status, id, nullptr, nullptr, nullptr);
}

CU_API cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                 CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  CU_ENTER_CONTEXT;
  return give_capture_info(device, stream, status, id, graph, dependencies, count);
}

CU_API cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                 CUgraph* graph, const CUgraphNode** dependencies,
                                 const CUgraphEdgeData** edges, size_t* count) {
  CU_ENTER_CONTEXT;
  write_nulls(edges);
  return give_capture_info(device, stream, status, id, graph, dependencies, count);
}

CU_API cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies, size_t count,
                                         unsigned flags) {
  CU_ENTER_CONTEXT;
  return finish(update_capture_dependencies(
      device, stream, reinterpret_cast<void* const*>(dependencies), count, flags));
}

CU_API cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                            const CUgraphEdgeData*, size_t count, unsigned flags) {
  CU_ENTER_CONTEXT;
  return finish(update_capture_dependencies(
      device, stream, reinterpret_cast<void* const*>(dependencies), count, flags));
}

CU_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CU_ENTER;
  return finish(exchange_capture_mode(reinterpret_cast<int*>(mode)));
}

CU_API cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t, unsigned) {
  CU_ENTER_CONTEXT;
  const auto allocation = machine().memory().find(as_pointer(address));
  if (!allocation || allocation->kind != MemoryKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().graphs().refuse_capture(device, stream));  // attaching has no effect with
                                                                     // concurrent access
}

// Like all work that is not captured, host functions run before the call returns, on the calling
// thread.
CU_API cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  CU_ENTER_CONTEXT;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().work().run_host_function(device, stream,
                                                   [function, argument] { function(argument); }));
}

CU_API cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* argument,
                           unsigned flags) {
  CU_ENTER_CONTEXT;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Status status = machine().graphs().refuse_capture(device, stream);
  if (status != Status::kOk) return finish(status);
  callback(stream, CUDA_SUCCESS, argument);
  return CUDA_SUCCESS;
}

// Like all work, the write takes effect at once.
CU_API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  CU_ENTER_CONTEXT;
  const Fill write{as_pointer(address), 1, value, sizeof value, NodeKind::kStreamWrite};
  return finish(machine().work().fill(device, stream, write, Wait::kNo));
}
