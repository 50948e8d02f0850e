#include <cuda_runtime_api.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Registry.h>

#include <uvmalloc/pytorch/plugin/export_hooks.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/torch_statistics.hpp>

namespace uvm::torch_plugin {
namespace {

// Every registered way to free CUDA memory that torch holds elsewhere.
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

void delete_device(void* address) {
  facades().device->raw_delete(address);
}

}  // namespace

CachingManagedAllocator& allocator() {
  const Activation& activation = activate_process_allocator();
  TORCH_CHECK(activation.allocator != nullptr, "uvmalloc is not active: ", activation.reason);
  return *activation.allocator;
}

void* DeviceFacade::allocate_on(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream) {
  try {
    return allocator().allocate(Facade::kDevice, device, size_bytes, stream);
  } catch (const OutOfMemoryError& error) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    auto live = static_cast<size_t>(getDeviceStats(device).allocated_bytes[0].current);
    for (const auto& observer : observers_) {
      observer(device, static_cast<int64_t>(size_bytes), static_cast<int64_t>(total_bytes),
               static_cast<int64_t>(free_bytes));
    }
    for (const auto& observer : rejection_observers_) {
      observer(device, size_bytes, live, total_bytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what(), " Device ", static_cast<int>(device),
                     " holds ", c10::CachingAllocator::format_size(live), " in tensors; it has ",
                     c10::CachingAllocator::format_size(free_bytes), " of ",
                     c10::CachingAllocator::format_size(total_bytes), " free.");
  }
}

c10::DataPtr DeviceFacade::allocate(size_t size_bytes) {
  c10::DeviceIndex device = c10::cuda::current_device();
  void* address = allocate_on(device, size_bytes, c10::cuda::getCurrentCUDAStream(device).stream());
  return {address, address, &delete_device, c10::Device(c10::kCUDA, device)};
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
  // The copy reads the other side's bytes after this call returns: they must not be used again, nor
  // taken over by a writer on the host, before it is through.
  allocator().record_use(source, device, stream.stream());
  C10_CUDA_CHECK(
      cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream.stream()));
}

void DeviceFacade::emptyCache(c10::MempoolId_t) {
  allocator().release_cached();
}

c10::CachingDeviceAllocator::DeviceStats DeviceFacade::getDeviceStats(c10::DeviceIndex device) {
  return device_stats(allocator().statistics(), device);
}

void DeviceFacade::resetAccumulatedStats(c10::DeviceIndex device) {
  allocator().reset_totals(Facade::kDevice, device);
}

void DeviceFacade::resetPeakStats(c10::DeviceIndex device) {
  allocator().reset_peaks(Facade::kDevice, device);
}

void* DeviceFacade::raw_alloc(size_t size_bytes) {
  c10::DeviceIndex device = c10::cuda::current_device();
  return allocate_on(device, size_bytes, c10::cuda::getCurrentCUDAStream(device).stream());
}

void* DeviceFacade::raw_alloc_with_stream(size_t size_bytes, cudaStream_t stream) {
  return allocate_on(c10::cuda::current_device(), size_bytes, stream);
}

void DeviceFacade::raw_delete(void* address) {
  if (allocator().free(address) == FreeResult::kNotOurs && previous_ != nullptr) {
    previous_->raw_delete(address);
  }
}

void DeviceFacade::init(int device_count) {
  const Activation& activation = activate_process_allocator();
  // Blocks made before us may still come back to torch's own allocator.
  if (previous_ != nullptr && !previous_->initialized()) previous_->init(device_count);
  if (activation.allocator == nullptr) {
    uninstall();
    return;
  }
  if (!initialized_.exchange(true)) {
    watch_python_pointers();
    activation.allocator->add_pressure_callback(run_free_memory_callbacks);
  }
}

double DeviceFacade::getMemoryFraction(c10::DeviceIndex) {
  return 1.0;
}

void DeviceFacade::setMemoryFraction(double, c10::DeviceIndex) {
  not_available("set_per_process_memory_fraction", "set UVMALLOC_BUDGET before the program starts");
}

void DeviceFacade::enable(bool value) {
  if (!value) not_available("switching caching off", "unset PYTORCH_ENABLE_UNIFIED_MEMORY");
}

void DeviceFacade::cacheInfo(c10::DeviceIndex device, size_t* largest_block) {
  MemoryFigures figures;
  allocator().runtime().memory_figures(device, &figures);
  *largest_block = std::max(*largest_block, figures.free_bytes);
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

native::SnapshotInfo DeviceFacade::snapshot(c10::MempoolId_t, bool) {
  native::SnapshotInfo info;
  info.segments = segment_infos(allocator().segments());
  info.device_traces.resize(static_cast<std::size_t>(allocator().runtime().device_count()));
  return info;
}

void DeviceFacade::beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                                       std::function<bool(cudaStream_t)>) {
  not_available("private memory pools (CUDA graphs, MemPool) yet",
                "run that part without uvmalloc");
}
void DeviceFacade::endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) {
  not_available("private memory pools yet", "run that part without uvmalloc");
}
void DeviceFacade::releasePool(c10::DeviceIndex, c10::MempoolId_t) {
  not_available("private memory pools yet", "run that part without uvmalloc");
}

native::ShareableHandle DeviceFacade::shareIpcHandle(void*) {
  not_available("sharing CUDA tensors between processes",
                "CUDA has no IPC for managed memory: send a CPU copy");
}
std::shared_ptr<void> DeviceFacade::getIpcDevPtr(std::string) {
  not_available("CUDA tensors shared by another process", "send a CPU copy");
}

void DeviceFacade::recordHistory(bool enabled, native::CreateContextFn, size_t,
                                 native::RecordContext, bool, const std::vector<std::string>&) {
  if (enabled)
    not_available("_record_memory_history yet", "use the report: UVMALLOC_REPORT=stderr");
}

void DeviceFacade::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  observers_.push_back(std::move(observer));
}

void DeviceFacade::attachOomRejectionObserver(RejectionObserver observer) {
  rejection_observers_.push_back(std::move(observer));
}

void DeviceFacade::attachAllocatorTraceTracker(native::AllocatorTraceTracker) {
  not_available("allocator trace trackers yet", "run that part without uvmalloc");
}

void DeviceFacade::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  c10::cuda::CUDAGuard guard(device);
  cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
}

cudaError_t DeviceFacade::memcpyAsync(void* destination, int, const void* source, int,
                                      size_t size_bytes, cudaStream_t stream, bool) {
  return cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream);
}

std::shared_ptr<native::AllocatorState> DeviceFacade::getCheckpointState(c10::DeviceIndex,
                                                                         c10::MempoolId_t) {
  not_available("checkpoints of private pools yet", "run that part without uvmalloc");
}
native::CheckpointDelta DeviceFacade::setCheckpointPoolState(
    c10::DeviceIndex, std::shared_ptr<native::AllocatorState>) {
  not_available("checkpoints of private pools yet", "run that part without uvmalloc");
}

}  // namespace uvm::torch_plugin
