#include "runtime/cuda/driver_api.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

namespace uvm::cuda {
namespace {

class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <class Function>
  void optional(Function*& out, const char* symbol) {
    out = reinterpret_cast<Function*>(dlsym(library_, symbol));
  }

  template <class Function>
  void required(Function*& out, const char* symbol) {
    optional(out, symbol);
    if (out == nullptr && missing_.empty()) missing_ = symbol;
  }

  void require_one_of(bool present, const char* symbol) {
    if (!present && missing_.empty()) missing_ = symbol;
  }

  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

std::string bind_all(void* library, DriverApi* api) {
  Binder bind(library);
  bind.required(api->init, "cuInit");
  bind.required(api->get_error_name, "cuGetErrorName");
  bind.required(api->driver_get_version, "cuDriverGetVersion");
  bind.required(api->device_get, "cuDeviceGet");
  bind.required(api->device_get_count, "cuDeviceGetCount");
  bind.required(api->device_get_name, "cuDeviceGetName");
  bind.required(api->device_get_attribute, "cuDeviceGetAttribute");
  bind.required(api->device_total_mem, "cuDeviceTotalMem_v2");
  bind.required(api->primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  bind.required(api->primary_ctx_get_state, "cuDevicePrimaryCtxGetState");
  bind.required(api->ctx_get_current, "cuCtxGetCurrent");
  bind.required(api->ctx_set_current, "cuCtxSetCurrent");
  bind.required(api->ctx_push_current, "cuCtxPushCurrent_v2");
  bind.required(api->ctx_pop_current, "cuCtxPopCurrent_v2");
  bind.required(api->ctx_synchronize, "cuCtxSynchronize");
  bind.required(api->mem_get_info, "cuMemGetInfo_v2");
  bind.required(api->mem_alloc_managed, "cuMemAllocManaged");
  bind.required(api->mem_free, "cuMemFree_v2");
  bind.required(api->memcpy_async, "cuMemcpyAsync");
  bind.required(api->pointer_get_attribute, "cuPointerGetAttribute");
  bind.required(api->stream_create, "cuStreamCreate");
  bind.required(api->stream_destroy, "cuStreamDestroy_v2");
  bind.required(api->stream_synchronize, "cuStreamSynchronize");
  bind.required(api->stream_wait_event, "cuStreamWaitEvent");
  bind.required(api->stream_is_capturing, "cuStreamIsCapturing");
  bind.required(api->exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  bind.required(api->event_create, "cuEventCreate");
  bind.required(api->event_destroy, "cuEventDestroy_v2");
  bind.required(api->event_record, "cuEventRecord");
  bind.required(api->event_query, "cuEventQuery");
  bind.required(api->event_synchronize, "cuEventSynchronize");
  bind.required(api->event_elapsed_time, "cuEventElapsedTime");
#if UVMALLOC_CUDA_BY_LOCATION
  bind.optional(api->advise_by_location, "cuMemAdvise_v2");
  bind.optional(api->prefetch_by_location, "cuMemPrefetchAsync_v2");
  bind.optional(api->prefetch_batch, "cuMemPrefetchBatchAsync");
  bind.optional(api->discard_and_prefetch_batch, "cuMemDiscardAndPrefetchBatchAsync");
#endif
  bind.optional(api->advise_by_device, "cuMemAdvise");
  bind.optional(api->prefetch_by_device, "cuMemPrefetchAsync");
  if (kFindPages != nullptr) bind.optional(api->find_pages, kFindPages);
  bind.optional(api->discard_batch, "cuMemDiscardBatchAsync");
  bind.optional(api->device_get_p2p_attribute, "cuDeviceGetP2PAttribute");
  bind.require_one_of(api->can_advise(), "cuMemAdvise");
  bind.require_one_of(api->can_prefetch(), "cuMemPrefetchAsync");
  return bind.missing();
}

}  // namespace

std::unique_ptr<const DriverApi> bind_driver(std::string* reason) {
  const DriverLibrary library = load_driver();
  if (library.handle == nullptr) {
    *reason = kNoDriver;
    return nullptr;
  }
  auto api = std::make_unique<DriverApi>();
  if (std::string missing = bind_all(library.handle, api.get()); !missing.empty()) {
    *reason = fmt::format("{} has no {}: {}", library.name, missing, kTooOld);
    return nullptr;
  }
  CUresult result = api->init(0);
  if (result != CUDA_SUCCESS && !means_no_device(result)) {
    *reason = fmt::format("cuInit failed: {} ({})", error_name(api->get_error_name, result),
                          static_cast<int>(result));
    return nullptr;
  }
  int devices = 0;
  if (means_no_device(result) || api->device_get_count(&devices) != CUDA_SUCCESS || devices == 0) {
    *reason = "no CUDA device is visible";
    return nullptr;
  }
  return api;
}

bool is_driver_present() {
  return load_driver().handle != nullptr;
}

}  // namespace uvm::cuda
