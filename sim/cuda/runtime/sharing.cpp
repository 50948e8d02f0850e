// Memory and events that other processes open.
#include "sim/api/sharing.hpp"
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  RT_ENTER_DEVICE;
  (void)device;
  if (handle == nullptr) return fail(cudaErrorInvalidValue);
  return finish(export_memory(address, handle->reserved));
}

RT_API cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned flags) {
  RT_ENTER_DEVICE;
  return finish(import_memory(device, handle.reserved, flags, out));
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
  return finish(export_event(event, handle->reserved));
}

RT_API cudaIpcOpenEventHandle(cudaEvent_t* out, cudaIpcEventHandle_t handle) {
  RT_ENTER_DEVICE;
  return finish(import_event(device, handle.reserved, out_of(out)));
}
