// Memory and events that other processes open.
#include <unistd.h>

#include "sim/api/sharing.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  RT_ENTER_DEVICE;
  (void)device;
  if (handle == nullptr) return fail(cudaErrorInvalidValue);
  SharedMemory shared{};
  const Status status = machine().sharing().export_memory(address, &shared);
  if (status == Status::kOk) write_handle(shared, handle->reserved);
  return finish(status);
}

RT_API cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned flags) {
  RT_ENTER_DEVICE;
  SharedMemory shared{};
  const bool is_handle = read_handle(handle.reserved, &shared);
  if (out == nullptr || flags != cudaIpcMemLazyEnablePeerAccess || !is_handle)
    return fail(cudaErrorInvalidValue);
  void* address = nullptr;
  const Status status = machine().sharing().import_memory(device, shared, &address);
  if (status == Status::kOk) *out = address;
  return finish(status);
}

RT_API cudaIpcCloseMemHandle(void* address) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(machine().sharing().close_imported(address));
}

RT_API cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  RT_ENTER_DEVICE;
  (void)device;
  if (handle == nullptr) return fail(cudaErrorInvalidValue);
  const auto flags = machine().streams().event_flags(event);
  if (!flags || (*flags & cudaEventInterprocess) == 0) return finish(Status::kInvalidHandle);
  write_handle(SharedEvent{getpid()}, handle->reserved);
  return finish(Status::kOk);
}

RT_API cudaIpcOpenEventHandle(cudaEvent_t* out, cudaIpcEventHandle_t handle) {
  RT_ENTER_DEVICE;
  SharedEvent shared{};
  if (out == nullptr || !read_handle(handle.reserved, &shared)) return fail(cudaErrorInvalidValue);
  if (shared.process == getpid()) return finish(Status::kInvalidContext);
  constexpr unsigned kFlags = cudaEventInterprocess | cudaEventDisableTiming;
  *out =
      static_cast<cudaEvent_t>(machine().streams().create_event(device, kFlags, /*timing=*/false));
  return finish(Status::kOk);
}
