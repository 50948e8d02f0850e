// Memory and events that other processes open.
#include "sim/api/sharing.hpp"
#include "sim/api/graphs.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

CU_API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(export_memory(as_pointer(address), handle->reserved));
}

CU_API cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  CU_ENTER_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  const Status status = import_memory(device, handle.reserved, flags, &address);
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
  return finish(export_event(event, handle->reserved));
}

CU_API cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  CU_ENTER_CONTEXT;
  return finish(import_event(device, handle.reserved, out_of(out)));
}
