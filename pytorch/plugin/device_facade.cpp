#include <cuda_runtime_api.h>

#include <cstdlib>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Registry.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/call_sites.hpp"
#include "pytorch/plugin/export_hooks.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/operator_uses.hpp"
#include "pytorch/plugin/python_frames.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/shared_storage.hpp"
#include "pytorch/plugin/torch_statistics.hpp"
#include "runtime/log.hpp"

namespace uvm::torch_plugin {

CachingManagedAllocator& find_allocator() {
  const Activation& activation = activate_process_allocator();
  TORCH_CHECK(activation.allocator != nullptr, "uvmalloc is not active: ", activation.reason);
  count_native_allocations_at_exit();
  known_allocator.store(activation.allocator, std::memory_order_release);
  return *activation.allocator;
}

// Same as CUDAStream::stream(), but skips the second check of the device. The default stream has
// the id 0 (c10/core/Stream.h) and no handle.
cudaStream_t current_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  return stream.id() == 0 ? nullptr : stream.stream();
}

namespace {

// Runs every registered callback that frees CUDA memory which torch holds elsewhere.
bool run_free_memory_callbacks() {
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

[[noreturn]] void not_available(const char* what, const char* instead) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "uvmalloc does not support ", what, "; ", instead);
  std::abort();  // not reached
}

// The deleter of tensors. It cannot throw: errors are logged where they occur.
void delete_device(void* address) {
  facades().device->give_back(address);
}

// Torch's own allocator also checks only whether these variables are set, not their values.
void warn_of_ignored_variables() {
  for (const char* name : {"PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"}) {
    if (secure_getenv(name) == nullptr) continue;
    log_line(LogLevel::kWarning, std::string(name) +
                                     " has no effect: uvmalloc always caches; to check single "
                                     "allocations, run without uvmalloc");
  }
}

// True if this thread takes device memory from torch's own allocator.
thread_local bool device_is_ordinary = false;

}  // namespace

MemoryScope::MemoryScope(bool managed)
    : host_before_(set_host_memory(managed ? HostMemory::kAlwaysManaged : HostMemory::kMalloc)),
      device_before_(std::exchange(device_is_ordinary, !managed)) {}
MemoryScope::~MemoryScope() {
  set_host_memory(host_before_);
  device_is_ordinary = device_before_;
}

void DeviceFacade::check_device(c10::DeviceIndex device) {
  const int count = allocator().inspection().runtime().device_count();
  TORCH_CHECK(0 <= device && device < count, "Invalid device argument ", static_cast<int>(device),
              ": there are ", count, " devices");
}

bool DeviceFacade::has_native() const {
  return previous_ != nullptr && previous_->initialized();
}

bool DeviceFacade::native_holds_memory() const {
  for (int device = 0; has_native() && device < allocator().inspection().runtime().device_count();
       ++device) {
    const auto stats = previous_->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    if (stats.reserved_bytes[0].current != 0) return true;
  }
  return false;
}

// Costs one load each for the history and for library tracers, and a check of the profiler.
bool DeviceFacade::is_watched() const {
  return history_.is_watched() || c10::impl::GPUTrace::get_trace() != nullptr ||
         c10::memoryProfilingEnabled();
}

// `kInRegion`: a region may be open.
template <bool kInRegion>
inline void* DeviceFacade::allocate_or_throw(c10::DeviceIndex device, size_t size_bytes,
                                             cudaStream_t stream,
                                             const MemoryHistory::Context& context) {
  if (pools_.is_foreign(device, stream)) [[unlikely]]
    return previous_->raw_alloc_with_stream(size_bytes, stream);
  try {
    if constexpr (kInRegion) {
      return allocate_for_group(Facade::kDevice, DeviceStream::named(device, stream), size_bytes);
    }
    return allocator().allocate(Facade::kDevice, device, size_bytes, stream);
  } catch (const OutOfMemoryError& error) {
    if (void* address = pools_.allocate_from_pools_for_oom(device, size_bytes, stream)) {
      return address;
    }
    out_of_memory(error, device, size_bytes, stream, context);
  }
}

void* DeviceFacade::allocate_watched(c10::DeviceIndex device, size_t size_bytes,
                                     cudaStream_t stream) {
  const MemoryHistory::Context context = history_.gather(native::RecordContext::STATE);
  void* address = nullptr;
  {
    MemoryHistory::PagesScope pages(context);
    address = allocate_or_throw<true>(device, size_bytes, stream, context);
  }
  report_allocated(address, size_bytes, context);
  return address;
}

void* DeviceFacade::allocate_on(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream) {
  static const MemoryHistory::Context kNoContext;
  if (any_region() || is_watched() || allocator().tracing().wants_call_sites()) [[unlikely]]
    return allocate_in_regions(device, size_bytes, stream);
  return allocate_or_throw<false>(device, size_bytes, stream, kNoContext);
}

void* DeviceFacade::allocate_in_regions(c10::DeviceIndex device, size_t size_bytes,
                                        cudaStream_t stream) {
  void* address = allocate_in_region(Facade::kDevice, size_bytes, [&] {
    return is_watched() ? allocate_watched(device, size_bytes, stream)
                        : allocate_or_throw<true>(device, size_bytes, stream, nullptr);
  });
  trace_call_site(allocator(), address);
  return address;
}

c10::DataPtr DeviceFacade::allocate(size_t size_bytes) {
  constexpr size_t kExabyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, size_bytes < kExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  if (device_is_ordinary && has_native()) [[unlikely]]
    return previous_->allocate(size_bytes);
  const c10::DeviceIndex device = c10::cuda::current_device();
  void* address = allocate_on(device, size_bytes, current_stream(device));
  return {address, address, &delete_device, c10::Device(c10::kCUDA, device)};
}

c10::DataPtr DeviceFacade::allocateWithAddress(size_t size_bytes, void* address) {
  c10::DataPtr data = allocate(size_bytes);
  TORCH_CHECK(data.get() == address, "Could not allocate CUDA storage at exact address ", address);
  return data;
}

c10::DeleterFnPtr DeviceFacade::raw_deleter() const {
  return &delete_device;
}

void DeviceFacade::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  auto block = allocator().find(destination);
  c10::DeviceIndex device =
      block ? static_cast<c10::DeviceIndex>(block->device) : c10::cuda::current_device();
  c10::cuda::CUDAGuard guard(device);
  auto stream = c10::cuda::getCurrentCUDAStream(device);
  // The copy reads the source after this call returns. Until the copy has ended, the source's bytes
  // must not be reused or taken over by a writer on the host.
  allocator().record_use(source, device, stream.stream());
  C10_CUDA_CHECK(
      cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream.stream()));
}

void DeviceFacade::emptyCache(c10::MempoolId_t pool) {
  const MemoryHistory::Context context = history_.gather(native::RecordContext::ALL);
  const MemoryHistory::PagesScope pages(context);
  if (native_holds_memory()) previous_->emptyCache(pool);
  if (pool == c10::MempoolId_t{0, 0}) {
    allocator().release_cached();
    return;
  }
  for (int device = 0; device < allocator().inspection().runtime().device_count(); ++device) {
    pools_.empty(static_cast<c10::DeviceIndex>(device), pool);
  }
}

c10::CachingDeviceAllocator::DeviceStats DeviceFacade::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  auto stats = device_stats(allocator().statistics(), device, rejections_of(device));
  if (has_native()) add_device_stats(&stats, previous_->getDeviceStats(device));
  return stats;
}

void DeviceFacade::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  {
    std::lock_guard lock(mutex_);
    rejections_.at(static_cast<size_t>(device)) = 0;
  }
  allocator().reset_totals(Facade::kDevice, device);
  if (has_native()) previous_->resetAccumulatedStats(device);
}

void DeviceFacade::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  allocator().reset_peaks(Facade::kDevice, device);
  if (has_native()) previous_->resetPeakStats(device);
}

void* DeviceFacade::raw_alloc(size_t size_bytes) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  return allocate_on(device, size_bytes, current_stream(device));
}

void* DeviceFacade::raw_alloc_with_stream(size_t size_bytes, cudaStream_t stream) {
  return allocate_on(c10::cuda::current_device(), size_bytes, stream);
}

void DeviceFacade::raw_delete(void* address) {
  switch (give_back(address)) {
    case FreeResult::kDouble:
      TORCH_CHECK(false, "invalid device pointer: ", address, " is free already");
    case FreeResult::kInterior:
      TORCH_CHECK(false, "invalid device pointer: ", address, " is not the start of its block");
    default:
      break;
  }
}

FreeResult DeviceFacade::give_back(void* address) {
  forget_block(address);
  if (is_watched()) [[unlikely]] {
    report_freed(address);
  }
  const FreeResult result = allocator().free(address);
  if (result == FreeResult::kNotOurs && previous_ != nullptr) previous_->raw_delete(address);
  return result;
}

void DeviceFacade::init(int device_count) {
  const Activation& activation = activate_process_allocator();
  // Blocks allocated before the plugin was installed still return to torch's own allocator.
  if (previous_ != nullptr && !previous_->initialized()) previous_->init(device_count);
  if (activation.allocator == nullptr) {
    uninstall();
    return;
  }
  if (!initialized_.exchange(true)) {
    warn_of_ignored_variables();
    watch_python_pointers();
    FrameworkBridge(*activation.allocator).set_places_source([] { note_places_of_shared(); });
    activation.allocator->limits().add_pressure_callback([] { return note_places_of_shared(); });
    activation.allocator->limits().add_pressure_callback(run_free_memory_callbacks);
    FrameworkBridge(*activation.allocator).set_memory_observer(&history_);
    watch_operators_for(*activation.allocator);
    FrameworkBridge(*activation.allocator).set_search_signs(search_sign);
    set_first_limits(device_count);
  }
}

void DeviceFacade::init_late() {
  if (!has_native()) return;
  pools_.expect_earlier();
  init(c10::cuda::device_count());
}

void DeviceFacade::enable(bool value) {
  if (!value) not_available("switching caching off", "unset PYTORCH_ENABLE_UNIFIED_MEMORY");
}

void DeviceFacade::cacheInfo(c10::DeviceIndex device, size_t* largest_block) {
  check_device(device);
  if (*largest_block == 0) *largest_block = getMemoryInfo(device).first;
  for (const StreamStatistics& stream : allocator().statistics().streams) {
    if (stream.facade != Facade::kDevice || stream.device != device) continue;
    *largest_block = std::max<size_t>(*largest_block, stream.largest_free_bytes);
  }
}

void* DeviceFacade::getBaseAllocation(void* address, size_t* size_bytes) {
  auto block = allocator().find(address);
  if (!block)
    return previous_ != nullptr ? previous_->getBaseAllocation(address, size_bytes) : nullptr;
  if (size_bytes != nullptr) *size_bytes = block->size_bytes;
  return block->base;
}

void DeviceFacade::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get() == nullptr) return;
  bool ours = allocator().record_use(data.get(), stream.device_index(), stream.stream());
  if (!ours && previous_ != nullptr) previous_->recordStream(data, stream);
}

void DeviceFacade::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id,
                                       std::function<bool(cudaStream_t)> filter) {
  check_device(device);
  pools_.begin(device, id, std::move(filter));
}
void DeviceFacade::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) {
  check_device(device);
  pools_.end(device, id);
}
void DeviceFacade::markCaptureBegin(c10::DeviceIndex device) {
  const auto mark = [&device]([[maybe_unused]] auto* own) {
    if constexpr (requires { own->markCaptureBegin(device); }) own->markCaptureBegin(device);
  };
  if (previous_ != nullptr) mark(previous_);
}
void DeviceFacade::markCaptureEnd(c10::DeviceIndex device) {
  const auto mark = [&device]([[maybe_unused]] auto* own) {
    if constexpr (requires { own->markCaptureEnd(device); }) own->markCaptureEnd(device);
  };
  if (previous_ != nullptr) mark(previous_);
}
void DeviceFacade::releasePool(c10::DeviceIndex device, c10::MempoolId_t id) {
  check_device(device);
  pools_.release(device, id);
}
int DeviceFacade::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) {
  check_device(device);
  return pools_.use_count(device, id);
}
void DeviceFacade::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                                      std::shared_ptr<native::CUDAAllocator> own) {
  check_device(device);
  pools_.create_or_retain(device, id, std::move(own));
}
void DeviceFacade::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use) {
  check_device(device);
  pools_.set_use_on_oom(device, id, use);
}
void DeviceFacade::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) {
  check_device(device);
  pools_.set_no_split(device, id);
}
bool DeviceFacade::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                            const std::unordered_set<void*>& expected) {
  check_device(device);
  return pools_.has_exactly(device, id, expected);
}

native::ShareableHandle DeviceFacade::shareIpcHandle(void* address) {
  if (!allocator().find(address) && previous_ != nullptr) return previous_->shareIpcHandle(address);
  not_available(
      "CUDA tensors that are shared with another process: CUDA has no handles for managed "
      "memory",
      "send tensor.cpu(), which is shared without a copy, or start the processes that "
      "share with PYTORCH_ENABLE_UNIFIED_MEMORY=0");
}
std::shared_ptr<void> DeviceFacade::getIpcDevPtr(std::string handle) {
  // The memory belongs to another process: the torch in that process allocated it.
  TORCH_CHECK(previous_ != nullptr, "there is no allocator that opens handles of CUDA memory");
  return previous_->getIpcDevPtr(std::move(handle));
}

void DeviceFacade::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  if (has_native()) {  // torch's own allocator maps its expandable segments for the peer
    previous_->enablePeerAccess(device, peer);
    return;
  }
  c10::cuda::CUDAGuard guard(device);
  cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
}

cudaError_t DeviceFacade::memcpyAsync(void* destination, int to_device, const void* source,
                                      int from_device, size_t size_bytes, cudaStream_t stream,
                                      bool have_peer_access) {
  // Without peer access, torch's own allocator chooses the copy by how the memory was allocated.
  const bool plain = have_peer_access || to_device == from_device || !has_native() ||
                     (allocator().find(destination) && allocator().find(source));
  if (!plain) {
    return previous_->memcpyAsync(destination, to_device, source, from_device, size_bytes, stream,
                                  have_peer_access);
  }
  return cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream);
}

std::shared_ptr<native::AllocatorState> DeviceFacade::getCheckpointState(c10::DeviceIndex device,
                                                                         c10::MempoolId_t id) {
  check_device(device);
  return pools_.checkpoint(device, id);
}
native::CheckpointDelta DeviceFacade::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state) {
  check_device(device);
  return pools_.restore(device, state, raw_deleter());
}

}  // namespace uvm::torch_plugin
