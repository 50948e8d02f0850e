// Memory and events that other processes open.
#include <unistd.h>

#include "sim/api/sharing.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

CU_API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedMemory shared{};
  const Status status = machine().sharing().export_memory(as_pointer(address), &shared);
  if (status == Status::kOk) write_handle(shared, handle->reserved);
  return finish(status);
}

CU_API cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  CU_ENTER_CONTEXT;
  SharedMemory shared{};
  const bool is_handle = read_handle(handle.reserved, &shared);
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !is_handle)
    return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  const Status status = machine().sharing().import_memory(device, shared, &address);
  if (status == Status::kOk) *out = reinterpret_cast<CUdeviceptr>(address);
  return finish(status);
}

CU_API cuIpcCloseMemHandle(CUdeviceptr address) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(machine().sharing().close_imported(as_pointer(address)));
}

CU_API cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto flags = machine().streams().event_flags(event);
  if (!flags || (*flags & CU_EVENT_INTERPROCESS) == 0) return finish(Status::kInvalidHandle);
  write_handle(SharedEvent{getpid()}, handle->reserved);
  return finish(Status::kOk);
}

CU_API cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  CU_ENTER_CONTEXT;
  SharedEvent shared{};
  if (out == nullptr || !read_handle(handle.reserved, &shared)) return CUDA_ERROR_INVALID_VALUE;
  if (shared.process == getpid()) return finish(Status::kInvalidContext);
  constexpr unsigned kFlags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  *out = static_cast<CUevent>(machine().streams().create_event(device, kFlags, /*timing=*/false));
  return finish(Status::kOk);
}
