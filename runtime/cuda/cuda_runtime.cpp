#include "runtime/cuda/cuda_runtime.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/cuda/driver_api.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace cuda {
namespace {

RuntimeError translate(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return RuntimeError::kNone;
    case CUDA_ERROR_NOT_READY:
      return RuntimeError::kNotReady;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return RuntimeError::kOutOfMemory;
    case CUDA_ERROR_NOT_SUPPORTED:
      return RuntimeError::kNotSupported;
    case CUDA_ERROR_INVALID_VALUE:
      return RuntimeError::kInvalidValue;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return RuntimeError::kNoDevice;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_CONTEXT:  // the context was reset, and its memory no longer exists
      return RuntimeError::kNotUsable;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
      return RuntimeError::kCapture;
    default:
      return RuntimeError::kOther;
  }
}

CUdeviceptr device_pointer(const void* address) {
  return reinterpret_cast<CUdeviceptr>(const_cast<void*>(address));
}
CUstream stream_of(StreamHandle stream) {
  return static_cast<CUstream>(stream);
}
CUevent event_of(EventHandle event) {
  return static_cast<CUevent>(event);
}

#if UVMALLOC_CUDA_BY_LOCATION
CUmemLocation location_of(Place place) {
  CUmemLocation location{};
  location.type = place.is_device() ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  location.id = place.is_device() ? place.index : 0;
  return location;
}

// The ranges of a batch in the form that the driver's calls take, with one place for each run of
// ranges with the same destination.
struct BatchArguments {
  explicit BatchArguments(std::span<const RangeMove> moves) : count(moves.size()) {
    for (std::size_t i = 0; i < count; ++i) {
      addresses[i] = device_pointer(moves[i].address);
      sizes[i] = moves[i].size_bytes;
      if (i != 0 && moves[i].destination == moves[i - 1].destination) continue;
      locations[place_count] = location_of(moves[i].destination);
      first_of_place[place_count++] = i;
    }
  }

  std::size_t count;
  std::size_t place_count = 0;
  std::array<CUdeviceptr, DeviceRuntime::kMostBatchMoves> addresses{};
  std::array<std::size_t, DeviceRuntime::kMostBatchMoves> sizes{};
  std::array<CUmemLocation, DeviceRuntime::kMostBatchMoves> locations{};
  std::array<std::size_t, DeviceRuntime::kMostBatchMoves> first_of_place{};
};
#endif

CUdevice device_number_of(Place place) {
  return place.is_device() ? place.index : CU_DEVICE_CPU;
}

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime(std::unique_ptr<const DriverApi> api, int devices, int driver_version)
      : api_(std::move(api)),
        driver_version_(driver_version),
        contexts_(static_cast<size_t>(devices)),
        are_lost_(static_cast<size_t>(devices)) {}

  std::string_view name() const override { return "cuda"; }
  int device_count() const override { return static_cast<int>(contexts_.size()); }

  RuntimeStatus describe(int device, DeviceDescription* out) const override {
    if (!valid(device)) return bad_device("cuDeviceGet");
    char text[256] = {};
    if (CUresult result = api_->device_get_name(text, sizeof text, device);
        result != CUDA_SUCCESS) {
      return status(result, "cuDeviceGetName");
    }
    out->name = text;
    out->bus_address = bus_address(device);
    if (CUresult result = api_->device_total_mem(&out->total_bytes, device);
        result != CUDA_SUCCESS) {
      return status(result, "cuDeviceTotalMem");
    }
    DeviceCapabilities& can = out->capabilities;
    can.managed_memory = attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device) != 0;
    can.concurrent_managed_access =
        attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) != 0;
    can.pageable_memory_access = attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device) != 0;
    can.host_page_tables =
        attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device) != 0;
    can.direct_host_access =
        attribute(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, device) != 0;
    can.integrated = attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, device) != 0;
    can.migrates_on_fault = attribute(kMigratesOnFault, device) != 0;
    can.memory_is_host_node = memory_is_host_node(api_->device_get_attribute, device);
    can.discard = api_->discard_batch != nullptr && can.migrates_on_fault;
    can.batches = can.discard && can.concurrent_managed_access && has_batches();
    can.finds_pages = api_->find_pages != nullptr && can.concurrent_managed_access;
    can.prefetch_blocks = kPrefetchBlocks;
    can.coarse_grain = kCoarseGrainAdvice != 0 && can.migrates_on_fault && !can.integrated;
    if (!can.migrates_on_fault) out->why_pages_stay = kWhyPagesStay;
    can.compute_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    can.compute_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return {};
  }

  bool has_context(int device) const override {
    if (!valid(device)) return false;
    if (!kContextsAreMade) return true;
    if (contexts_[static_cast<size_t>(device)].load(std::memory_order_acquire) != nullptr)
      return true;
    unsigned flags = 0;
    int active = 0;
    return api_->primary_ctx_get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
  }

  void lose_context(int device) const override {
    if (valid(device)) are_lost_[static_cast<size_t>(device)] = true;
  }
  // The next call retains the context again, and the driver then makes a new context.
  void renew_context(int device) const override {
    if (!valid(device)) return;
    contexts_[static_cast<size_t>(device)] = nullptr;
    are_lost_[static_cast<size_t>(device)] = false;
  }

  RuntimeStatus memory_figures(int device, MemoryFigures* out) const override {
    return in_context(device, "cuMemGetInfo", [&] {
      const CUresult result = api_->mem_get_info(&out->free_bytes, &out->total_bytes);
      // Drivers of integrated devices may report only a carve-out as total, but all available
      // memory as free.
      out->total_bytes = std::max(out->total_bytes, out->free_bytes);
      return result;
    });
  }

  // Reports the vendor's own links, because only these support all atomic operations between
  // devices. The driver's performance rank does not help: it ranks links between devices, not the
  // link to the host.
  RuntimeStatus has_fast_link(int device, int peer, bool* out) const override {
    *out = false;
    if (!valid(device) || !valid(peer)) return bad_device("cuDeviceGetP2PAttribute");
    if (api_->device_get_p2p_attribute == nullptr || device == peer) return {};
    for (const CUdevice_P2PAttribute wanted : {CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                               CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED}) {
      for (const auto& [from, to] : {std::pair(device, peer), std::pair(peer, device)}) {
        int value = 0;
        const CUresult result = api_->device_get_p2p_attribute(&value, wanted, from, to);
        if (result != CUDA_SUCCESS) return status(result, "cuDeviceGetP2PAttribute");
        if (value == 0) return {};
      }
    }
    *out = true;
    return {};
  }

  RuntimeStatus pointer_attributes(const void* address, PointerAttributes* out) const override {
    *out = {};
    unsigned type = 0;
    unsigned managed = 0;
    int device = -1;
    CUdeviceptr pointer = device_pointer(address);
    // Memory that the driver does not know is not an error: its kind is kUnknown.
    CUresult result =
        api_->pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer);
    if (result == CUDA_ERROR_INVALID_VALUE) return {};
    if (result == CUDA_SUCCESS) {
      result = api_->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
    }
    if (result == CUDA_SUCCESS) {
      result = api_->pointer_get_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    }
    if (result != CUDA_SUCCESS) return status(result, "cuPointerGetAttribute");
    out->device = device;
    out->kind = managed != 0 ? PointerKind::kManaged : kind_of_memory(type, driver_version_);
    return {};
  }

  RuntimeStatus allocate_managed(int device, std::size_t size_bytes, void** out) const override {
    return beside_captures(device, "cuMemAllocManaged", [&] {
      CUdeviceptr pointer{};
      CUresult result = api_->mem_alloc_managed(&pointer, size_bytes, CU_MEM_ATTACH_GLOBAL);
      *out = reinterpret_cast<void*>(pointer);
      return result;
    });
  }

  RuntimeStatus free_managed(int device, void* address) const override {
    return beside_captures(device, "cuMemFree",
                           [&] { return api_->mem_free(device_pointer(address)); });
  }

  RuntimeStatus allow_coarse_grain(int device, void* address,
                                   std::size_t size_bytes) const override {
    if (kCoarseGrainAdvice == 0 || api_->advise_by_device == nullptr) return {};
    return beside_captures(device, "cuMemAdvise", [&] {
      return api_->advise_by_device(device_pointer(address), size_bytes,
                                    static_cast<CUmem_advise>(kCoarseGrainAdvice), device);
    });
  }

  RuntimeStatus advise(int device, void* address, std::size_t size_bytes, Advice advice,
                       Place place) const override {
    auto value = static_cast<CUmem_advise>(advice);
    return beside_captures(device, "cuMemAdvise", [&] {
#if UVMALLOC_CUDA_BY_LOCATION
      if (api_->advise_by_location != nullptr) {
        return api_->advise_by_location(device_pointer(address), size_bytes, value,
                                        location_of(place));
      }
#endif
      return api_->advise_by_device(device_pointer(address), size_bytes, value,
                                    device_number_of(place));
    });
  }

  RuntimeStatus prefetch(int device, void* address, std::size_t size_bytes, Place destination,
                         StreamHandle stream) const override {
    return beside_captures(device, "cuMemPrefetchAsync", [&] {
#if UVMALLOC_CUDA_BY_LOCATION
      if (api_->prefetch_by_location != nullptr) {
        return api_->prefetch_by_location(device_pointer(address), size_bytes,
                                          location_of(destination), 0, stream_of(stream));
      }
#endif
      return api_->prefetch_by_device(device_pointer(address), size_bytes,
                                      device_number_of(destination), stream_of(stream));
    });
  }

  RuntimeStatus discard(int device, void* address, std::size_t size_bytes,
                        StreamHandle stream) const override {
    if (api_->discard_batch == nullptr) {
      return status(CUDA_ERROR_NOT_SUPPORTED, "cuMemDiscardBatchAsync");
    }
    return beside_captures(device, "cuMemDiscardBatchAsync", [&] {
      CUdeviceptr pointer = device_pointer(address);
      return api_->discard_batch(&pointer, &size_bytes, 1, 0, stream_of(stream));
    });
  }

#if UVMALLOC_CUDA_BY_LOCATION
  RuntimeStatus prefetch_batch(int device, std::span<const RangeMove> moves,
                               StreamHandle stream) const override {
    return move_batch(device, api_->prefetch_batch, "cuMemPrefetchBatchAsync", moves, stream);
  }

  RuntimeStatus discard_batch(int device, std::span<const RangeMove> moves,
                              StreamHandle stream) const override {
    return call_batch(device, "cuMemDiscardBatchAsync", moves, [&](BatchArguments& batch) {
      return api_->discard_batch(batch.addresses.data(), batch.sizes.data(), batch.count, 0,
                                 stream_of(stream));
    });
  }

  RuntimeStatus discard_and_prefetch_batch(int device, std::span<const RangeMove> moves,
                                           StreamHandle stream) const override {
    return move_batch(device, api_->discard_and_prefetch_batch, "cuMemDiscardAndPrefetchBatchAsync",
                      moves, stream);
  }
#endif

  RuntimeStatus find_pages(int device, const void* address, std::size_t size_bytes,
                           std::size_t page_bytes, Place* out) const override {
    if (api_->find_pages == nullptr)
      return DeviceRuntime::find_pages(device, address, size_bytes, page_bytes, out);
    return beside_captures(device, "find_pages", [&] {
      return cuda::find_pages(api_->find_pages, device_pointer(address), size_bytes, page_bytes,
                              out);
    });
  }

  RuntimeStatus copy(int device, void* destination, const void* source, std::size_t size_bytes,
                     StreamHandle stream) const override {
    return in_context(device, "cuMemcpyAsync", [&] {
      return copy_bytes(api_->memcpy_async, device_pointer(destination), device_pointer(source),
                        size_bytes, stream_of(stream));
    });
  }

  RuntimeStatus create_stream(int device, StreamHandle* out) const override {
    return in_context(device, "cuStreamCreate", [&] {
      return api_->stream_create(reinterpret_cast<CUstream*>(out), CU_STREAM_NON_BLOCKING);
    });
  }

  RuntimeStatus destroy_stream(int device, StreamHandle stream) const override {
    return in_context(device, "cuStreamDestroy",
                      [&] { return api_->stream_destroy(stream_of(stream)); });
  }

  RuntimeStatus synchronize_stream(int device, StreamHandle stream) const override {
    return beside_captures(device, "cuStreamSynchronize",
                           [&] { return api_->stream_synchronize(stream_of(stream)); });
  }

  RuntimeStatus stream_wait_event(int device, StreamHandle stream,
                                  EventHandle event) const override {
    return in_context(device, "cuStreamWaitEvent", [&] {
      return api_->stream_wait_event(stream_of(stream), event_of(event), 0);
    });
  }

  RuntimeStatus is_capturing(int device, StreamHandle stream, bool* out) const override {
    return in_context(device, "cuStreamIsCapturing", [&] {
      CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
      CUresult result = api_->stream_is_capturing(stream_of(stream), &capture);
      *out = capture != CU_STREAM_CAPTURE_STATUS_NONE;
      return result;
    });
  }

  RuntimeStatus create_event(int device, EventHandle* out) const override {
    return in_context(device, "cuEventCreate", [&] {
      return api_->event_create(reinterpret_cast<CUevent*>(out), CU_EVENT_DISABLE_TIMING);
    });
  }

  RuntimeStatus create_timed_event(int device, EventHandle* out) const override {
    return in_context(device, "cuEventCreate", [&] {
      return api_->event_create(reinterpret_cast<CUevent*>(out), CU_EVENT_DEFAULT);
    });
  }

  RuntimeStatus destroy_event(int device, EventHandle event) const override {
    return in_context(device, "cuEventDestroy",
                      [&] { return api_->event_destroy(event_of(event)); });
  }

  RuntimeStatus record_event(int device, EventHandle event, StreamHandle stream) const override {
    return in_context(device, "cuEventRecord",
                      [&] { return api_->event_record(event_of(event), stream_of(stream)); });
  }

  RuntimeStatus query_event(int device, EventHandle event) const override {
    return beside_captures(device, "cuEventQuery",
                           [&] { return api_->event_query(event_of(event)); });
  }

  RuntimeStatus time_between(int device, EventHandle from, EventHandle to,
                             std::chrono::nanoseconds* out) const override {
    float milliseconds = 0;
    const RuntimeStatus status = beside_captures(device, "cuEventElapsedTime", [&] {
      return api_->event_elapsed_time(&milliseconds, event_of(from), event_of(to));
    });
    *out = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::milli>(milliseconds));
    return status;
  }

  RuntimeStatus synchronize_event(int device, EventHandle event) const override {
    return beside_captures(device, "cuEventSynchronize",
                           [&] { return api_->event_synchronize(event_of(event)); });
  }

  RuntimeStatus synchronize_device(int device) const override {
    return in_context(device, "cuCtxSynchronize", [&] { return api_->ctx_synchronize(); });
  }

 private:
  bool valid(int device) const {
    return device >= 0 && device < device_count();
  }

#if UVMALLOC_CUDA_BY_LOCATION
  bool has_batches() const {
    return api_->prefetch_batch != nullptr && api_->discard_batch != nullptr &&
           api_->discard_and_prefetch_batch != nullptr;
  }

  template <class Body>
  RuntimeStatus call_batch(int device, std::string_view call, std::span<const RangeMove> moves,
                           Body body) const {
    if (!has_batches()) return status(CUDA_ERROR_NOT_SUPPORTED, call);
    if (moves.empty() || moves.size() > kMostBatchMoves)
      return status(CUDA_ERROR_INVALID_VALUE, call);
    return beside_captures(device, call, [&] {
      BatchArguments batch(moves);
      return body(batch);
    });
  }

  RuntimeStatus move_batch(int device, MoveBatch* move, std::string_view call,
                           std::span<const RangeMove> moves, StreamHandle stream) const {
    return call_batch(device, call, moves, [&](BatchArguments& batch) {
      return move(batch.addresses.data(), batch.sizes.data(), batch.count, batch.locations.data(),
                  batch.first_of_place.data(), batch.place_count, 0, stream_of(stream));
    });
  }
#else
  bool has_batches() const {
    return false;
  }
#endif

  static RuntimeStatus bad_device(std::string_view call) {
    return {RuntimeError::kNoDevice, CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", call};
  }

  static RuntimeStatus lost(std::string_view call) {
    return {RuntimeError::kNotUsable, CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", call};
  }

  RuntimeStatus status(CUresult result, std::string_view call) const {
    if (result == CUDA_SUCCESS) return {};
    return {translate(result), static_cast<int>(result), error_name(api_->get_error_name, result),
            call};
  }

  int attribute(CUdevice_attribute which, int device) const {
    int value = 0;
    // If the driver does not know the attribute, the device does not have the property.
    return api_->device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
  }

  // Returns the address as nvidia-smi and rocm-smi print it, without the PCI function.
  std::string bus_address(int device) const {
    return fmt::format("{:04x}:{:02x}:{:02x}", attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device),
                       attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device),
                       attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
  }

  CUresult context_of(int device, CUcontext* out) const {
    std::atomic<CUcontext>& slot = contexts_[static_cast<size_t>(device)];
    *out = slot.load(std::memory_order_acquire);
    if (*out != nullptr) return CUDA_SUCCESS;
    // Two threads may both retain the context, because it is never released anyway.
    CUresult result = api_->primary_ctx_retain(out, device);
    if (result == CUDA_SUCCESS) slot.store(*out, std::memory_order_release);
    return result;
  }

  // Runs `body` with the device's primary context current, then restores the thread's context.
  template <class Body>
  RuntimeStatus in_context(int device, std::string_view call, Body body) const {
    if (!valid(device)) return bad_device(call);
    if (are_lost_[static_cast<size_t>(device)].load(std::memory_order_relaxed)) return lost(call);
    CUcontext wanted = nullptr;
    if (CUresult result = context_of(device, &wanted); result != CUDA_SUCCESS) {
      return status(result, "cuDevicePrimaryCtxRetain");
    }
    CUcontext current = nullptr;
    if (CUresult result = api_->ctx_get_current(&current); result != CUDA_SUCCESS) {
      return status(result, "cuCtxGetCurrent");
    }
    if (current == wanted) return status(body(), call);
    if (current == nullptr) return in_pushed_context(wanted, call, body);
    // Set and restore the context instead of push and pop: hipCtxPopCurrent leaves the thread on
    // the pushed device.
    if (CUresult result = api_->ctx_set_current(wanted); result != CUDA_SUCCESS) {
      return status(result, "cuCtxSetCurrent");
    }
    const RuntimeStatus outcome = status(body(), call);
    note_unrestored(api_->ctx_set_current(current), "cuCtxSetCurrent");
    return outcome;
  }

  // For a thread without a current context. The thread's device is the device that it chose last,
  // or device 0. Setting a context and then null would leave the thread on that context's device.
  template <class Body>
  RuntimeStatus in_pushed_context(CUcontext wanted, std::string_view call, Body body) const {
    if (CUresult result = api_->ctx_push_current(wanted); result != CUDA_SUCCESS) {
      return status(result, "cuCtxPushCurrent_v2");
    }
    const RuntimeStatus outcome = status(body(), call);
    CUcontext popped = nullptr;
    note_unrestored(api_->ctx_pop_current(&popped), "cuCtxPopCurrent_v2");
    return outcome;
  }

  // Only logs that a context or mode was not restored, because the caller needs the result of the
  // call itself, which may be the address of new memory.
  void note_unrestored(CUresult result, std::string_view call) const {
    if (result == CUDA_SUCCESS) return;
    log(LogLevel::kWarning, "a thread's context or capture mode could not be restored: {}: {} ({})",
        call, status(result, call).native_name, static_cast<int>(result));
  }

  // Like in_context(), for calls that invalidate captures of any thread because the driver treats
  // them as unsafe. They are safe here: uvmalloc's memory and events are never part of a graph.
  template <class Body>
  RuntimeStatus beside_captures(int device, std::string_view call, Body body) const {
    return in_context(device, call, [&] {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      if (CUresult result = api_->exchange_capture_mode(&mode); result != CUDA_SUCCESS)
        return result;
      const CUresult result = body();
      note_unrestored(api_->exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
      return result;
    });
  }

  std::unique_ptr<const DriverApi> api_;
  const int driver_version_;                              // the driver's own version number
  mutable std::vector<std::atomic<CUcontext>> contexts_;  // by device; null: not retained yet
  mutable std::vector<std::atomic<bool>> are_lost_;       // from lose_context() to renew_context()
};

}  // namespace
}  // namespace cuda

std::unique_ptr<DeviceRuntime> make_cuda_runtime(std::string* reason) {
  auto api = cuda::bind_driver(reason);
  if (api == nullptr) return nullptr;
  int devices = 0;
  int driver_version = 0;
  if (api->device_get_count(&devices) != CUDA_SUCCESS ||
      api->driver_get_version(&driver_version) != CUDA_SUCCESS) {
    *reason = "the CUDA driver does not report its devices";
    return nullptr;
  }
  return std::make_unique<cuda::CudaRuntime>(std::move(api), devices, driver_version);
}

}  // namespace uvm
