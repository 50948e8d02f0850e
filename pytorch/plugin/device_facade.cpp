#include <cuda_runtime_api.h>

#include <cstdlib>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Registry.h>

#include <uvmalloc/pytorch/plugin/conversion.hpp>
#include <uvmalloc/pytorch/plugin/export_hooks.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/region.hpp>
#include <uvmalloc/pytorch/plugin/torch_statistics.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm::torch_plugin {

CachingManagedAllocator& find_allocator() {
  const Activation& activation = activate_process_allocator();
  TORCH_CHECK(activation.allocator != nullptr, "uvmalloc is not active: ", activation.reason);
  known_allocator.store(activation.allocator, std::memory_order_release);
  return *activation.allocator;
}

// As stream() says it, which looks at the device twice before: the default stream, which always
// has the id 0 (c10/core/Stream.h), has no handle.
cudaStream_t current_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  return stream.id() == 0 ? nullptr : stream.stream();
}

namespace {

// Every registered way to free CUDA memory that torch holds elsewhere.
bool run_free_memory_callbacks() {
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

StreamKey key_of(const BlockDescription& block) {
  return {block.facade, block.device, block.stream, block.private_pool};
}

c10::DeviceIndex device_of(const BlockDescription& block) {
  return static_cast<c10::DeviceIndex>(block.device);
}

// What the device facade has in use there and holds.
std::pair<std::size_t, std::size_t> held_bytes(c10::DeviceIndex device) {
  const Statistics now = allocator().statistics();
  const auto& figures = now.classes[static_cast<std::size_t>(Facade::kDevice)].at(
      static_cast<std::size_t>(device))[kSizeClasses];
  return {figures.allocated_bytes.current, figures.reserved_bytes.current};
}

// What the process's setting allows each device; SIZE_MAX: anything.
std::size_t device_budget() {
  return allocator().configuration().device_budget_bytes.value_or(SIZE_MAX);
}

void check_device(c10::DeviceIndex device) {
  const int count = allocator().runtime().device_count();
  TORCH_CHECK(0 <= device && device < count, "Invalid device argument ", static_cast<int>(device),
              ": there are ", count, " devices");
}

// `change_bytes` is below zero for a block that was given back.
void report_to_profiler(void* address, int64_t change_bytes, c10::DeviceIndex device) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto [live, reserved] = held_bytes(device);
  c10::reportMemoryUsageToProfiler(address, change_bytes, live, reserved,
                                   c10::Device(c10::kCUDA, device));
}

// Whether requests that cannot be served are rejections, in torch's sense: where its setting
// throw_on_cudamalloc_oom is on, which 2.11 does not have yet. What the fraction of the device does
// not allow is out of memory all the same, to torch's own allocator too.
template <class Config>
bool rejects() {
  if constexpr (requires { Config::throw_on_cudamalloc_oom(); }) {
    return Config::throw_on_cudamalloc_oom();
  }
  return false;
}

[[noreturn]] void not_available(const char* what, const char* instead) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "uvmalloc does not support ", what, "; ", instead);
  std::abort();  // not reached
}

// Of tensors: nothing can be thrown there, and what is wrong has been logged.
void delete_device(void* address) {
  facades().device->give_back(address);
}

// Torch's own allocator looks whether they are set, whatever their values.
void warn_of_ignored_variables() {
  for (const char* name : {"PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"}) {
    if (std::getenv(name) == nullptr) continue;
    log_line(LogLevel::kWarning, std::string(name) +
                                     " has no effect: uvmalloc always caches; to check single "
                                     "allocations, run without uvmalloc");
  }
}

// This thread's device memory is torch's own.
thread_local bool device_is_ordinary = false;

}  // namespace

MemoryScope::MemoryScope(bool managed)
    : host_before_(set_host_memory(managed ? HostMemory::kAlwaysManaged : HostMemory::kMalloc)),
      device_before_(std::exchange(device_is_ordinary, !managed)) {}
MemoryScope::~MemoryScope() {
  set_host_memory(host_before_);
  device_is_ordinary = device_before_;
}

bool DeviceFacade::has_native() const {
  return previous_ != nullptr && previous_->initialized();
}

bool DeviceFacade::native_holds_memory() const {
  for (int device = 0; has_native() && device < allocator().runtime().device_count(); ++device) {
    const auto stats = previous_->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    if (stats.reserved_bytes[0].current != 0) return true;
  }
  return false;
}

// One load each for the history and libraries' own traces, and a look at the thread's profiler.
bool DeviceFacade::is_watched() const {
  return history_.is_watched() || c10::impl::GPUTrace::get_trace() != nullptr ||
         c10::memoryProfilingEnabled();
}

inline void* DeviceFacade::allocate_or_throw(c10::DeviceIndex device, size_t size_bytes,
                                             cudaStream_t stream,
                                             const MemoryHistory::Context& context) {
  if (pools_.is_foreign(device, stream)) [[unlikely]]
    return previous_->raw_alloc_with_stream(size_bytes, stream);
  try {
    return allocator().allocate(Facade::kDevice, device, size_bytes, stream);
  } catch (const OutOfMemoryError& error) {
    if (void* address = pools_.allocate_from_pools_for_oom(device, size_bytes, stream)) {
      return address;
    }
    out_of_memory(error, device, size_bytes, stream, context);
  }
}

void* DeviceFacade::allocate_on(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream) {
  static const MemoryHistory::Context kNoContext;
  if (any_region() || is_watched()) [[unlikely]]
    return allocate_in_regions(device, size_bytes, stream);
  return allocate_or_throw(device, size_bytes, stream, kNoContext);
}

void* DeviceFacade::allocate_in_regions(c10::DeviceIndex device, size_t size_bytes,
                                        cudaStream_t stream) {
  return allocate_in_region(Facade::kDevice, size_bytes, [&] {
    return is_watched() ? allocate_watched(device, size_bytes, stream)
                        : allocate_or_throw(device, size_bytes, stream, nullptr);
  });
}

// As torch's own allocator reports a block to those who listen.
void* DeviceFacade::allocate_watched(c10::DeviceIndex device, size_t size_bytes,
                                     cudaStream_t stream) {
  const MemoryHistory::Context context = history_.gather(native::RecordContext::STATE);
  void* address = nullptr;
  {
    MemoryHistory::PagesScope pages(context);
    address = allocate_or_throw(device, size_bytes, stream, context);
  }
  const auto block = allocator().find(address);
  if (!block) return address;
  if (history_.is_watched()) history_.allocated(key_of(*block), address, size_bytes, context);
  report_to_profiler(address, static_cast<int64_t>(block->size_bytes), device);
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address_of(address));
  }
  return address;
}

void DeviceFacade::delete_watched(void* address) {
  // In a forked child another thread may have had the history's lock.
  if (allocator().in_forked_child()) return;
  const auto block = allocator().find(address);
  if (!block || !block->live || block->base != address) return;
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address_of(address));
  }
  if (block->facade != Facade::kDevice) return;
  report_to_profiler(address, -static_cast<int64_t>(block->size_bytes), device_of(*block));
  if (history_.is_watched()) {
    history_.free_requested(key_of(*block), address, block->requested_bytes,
                            history_.gather(native::RecordContext::ALL), block->waits_when_freed);
  }
}

void DeviceFacade::out_of_memory(const OutOfMemoryError& error, c10::DeviceIndex device,
                                 size_t size_bytes, cudaStream_t stream,
                                 const MemoryHistory::Context& context) {
  const auto [free_bytes, total_bytes] = getMemoryInfo(device);
  const auto stats = getDeviceStats(device);
  const auto live = static_cast<size_t>(stats.allocated_bytes[0].current);
  const auto reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
  const size_t pages_bytes = round_up(size_bytes, kPageBytes);
  const Limit limit = limit_of(device);
  const bool limited = limit.bytes != SIZE_MAX;
  if (!limited && rejects<native::CUDAAllocatorConfig>()) {
    tell_of_rejection(device, pages_bytes, reserved, total_bytes);
  } else {
    if (history_.is_watched()) {
      history_.out_of_memory({Facade::kDevice, device, stream}, free_bytes, size_bytes, context);
    }
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size_bytes), live, reserved,
                                     c10::Device(c10::kCUDA, device));
    tell_out_of_memory(device, pages_bytes, limited ? limit.bytes : total_bytes, free_bytes);
  }
  using c10::CachingAllocator::format_size;
  // The beginning is torch's own, which programs look for.
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(pages_bytes), ". GPU ", static_cast<int>(device),
                   " has a total capacity of ", format_size(total_bytes), " of which ",
                   format_size(free_bytes), " is free. ",
                   limited ? format_size(limit.bytes) + " allowed; " : std::string(),
                   "Of the allocated memory ", format_size(live), " is allocated by PyTorch, and ",
                   format_size(reserved - std::min(live, reserved)),
                   " is reserved by PyTorch but unallocated. ", error.what());
}

void DeviceFacade::tell_out_of_memory(c10::DeviceIndex device, size_t size_bytes,
                                      size_t allowed_bytes, size_t free_bytes) {
  std::vector<native::OutOfMemoryObserver> observers;
  {
    std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) observer(device, size_bytes, allowed_bytes, free_bytes);
}

void DeviceFacade::tell_of_rejection(c10::DeviceIndex device, size_t size_bytes,
                                     size_t reserved_bytes, size_t total_bytes) {
  std::vector<RejectionObserver> observers;
  {
    std::lock_guard lock(mutex_);
    ++rejections_.at(static_cast<size_t>(device));
    observers = rejection_observers_;
  }
  for (const auto& observer : observers) observer(device, size_bytes, reserved_bytes, total_bytes);
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

void DeviceFacade::emptyCache(c10::MempoolId_t pool) {
  const MemoryHistory::Context context = history_.gather(native::RecordContext::ALL);
  const MemoryHistory::PagesScope pages(context);
  if (native_holds_memory()) previous_->emptyCache(pool);
  if (pool == c10::MempoolId_t{0, 0}) {
    allocator().release_cached();
    return;
  }
  for (int device = 0; device < allocator().runtime().device_count(); ++device) {
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
    delete_watched(address);
  }
  const FreeResult result = allocator().free(address);
  if (result == FreeResult::kNotOurs && previous_ != nullptr) previous_->raw_delete(address);
  return result;
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
    warn_of_ignored_variables();
    watch_python_pointers();
    hold_forks_during_conversions();
    activation.allocator->add_pressure_callback(run_free_memory_callbacks);
    activation.allocator->set_memory_observer(&history_);
    const double fraction = native::CUDAAllocatorConfig::per_process_memory_fraction();
    const bool limited = fraction < 1.0 || device_budget() != SIZE_MAX;
    for (int device = 0; limited && device < device_count; ++device) {
      setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
    }
  }
}

void DeviceFacade::init_late() {
  if (!has_native()) return;
  pools_.expect_earlier();
  init(c10::cuda::device_count());
}

DeviceFacade::Limit DeviceFacade::limit_of(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  return limits_.at(static_cast<size_t>(device));
}

std::uint64_t DeviceFacade::rejections_of(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  return rejections_.at(static_cast<size_t>(device));
}

double DeviceFacade::getMemoryFraction(c10::DeviceIndex device) {
  check_device(device);
  return limit_of(device).fraction;
}

void DeviceFacade::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  check_device(device);
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  // All of the device is no limit of its own: beyond it the host's memory serves.
  Limit limit{fraction, device_budget()};
  if (fraction < 1.0) {
    DeviceDescription description;  // asked of it without a context
    allocator().runtime().describe(device, &description);
    const auto total_bytes = static_cast<double>(description.total_bytes);
    limit.bytes = std::min(limit.bytes, static_cast<size_t>(fraction * total_bytes));
  }
  allocator().set_device_limit(device, limit.bytes);
  std::lock_guard lock(mutex_);
  limits_.at(static_cast<size_t>(device)) = limit;
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

native::SnapshotInfo DeviceFacade::snapshot(c10::MempoolId_t pool, bool include_traces) {
  native::SnapshotInfo info;
  // Native's own segments, and what PYTORCH_ALLOC_CONF has set. Torch's other allocator knows none.
  if (has_native() && previous_->name() == "native") info = previous_->snapshot(pool, false);
  const std::vector<SegmentDescription> segments = allocator().segments();
  add_segments(segments, pool, history_, &info.segments);
  std::sort(info.segments.begin(), info.segments.end(),
            [](const auto& left, const auto& right) { return left.address < right.address; });
  const int devices = allocator().runtime().device_count();
  info.device_traces.assign(static_cast<std::size_t>(devices), {});
  for (int device = 0; device < devices; ++device) {
    const auto of = static_cast<c10::DeviceIndex>(device);
    if (include_traces)
      info.device_traces[static_cast<std::size_t>(device)] = history_.trace_of(of);
    std::size_t active_bytes = 0;
    for (const auto& segment : info.segments) {
      if (segment.device == of) active_bytes += segment.active_size;
    }
    if (history_.is_watched()) history_.snapshot_taken(of, active_bytes, pool);
  }
  info.external_annotations = history_.annotations();
  return info;
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
  // The memory is another process's, and of torch's own kind.
  TORCH_CHECK(previous_ != nullptr, "there is no allocator that opens handles of CUDA memory");
  return previous_->getIpcDevPtr(std::move(handle));
}

void DeviceFacade::recordHistory(bool enabled, native::CreateContextFn gather, size_t most_entries,
                                 native::RecordContext when, bool clear,
                                 const std::vector<std::string>& skip_actions) {
  history_.record(enabled, gather, most_entries, when, clear, skip_actions);
}

void DeviceFacade::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& by) {
  history_.annotate(c10::cuda::current_device(), by);
}

void DeviceFacade::pushCompileContext(std::string& context) {
  history_.push_compile_context(context);
}

void DeviceFacade::popCompileContext() {
  history_.pop_compile_context();
}

void DeviceFacade::setUserMetadata(const std::string& metadata) {
  history_.set_user_metadata(metadata);
}

std::string DeviceFacade::getUserMetadata() {
  return history_.user_metadata();
}

void DeviceFacade::annotateMemory(const void* address, const std::string& note) {
  if (!history_.is_recording()) return;
  const auto block = allocator().find(address);
  // Native's own memory is in no history, nor is what was moved to the device.
  if (block ? block->facade != Facade::kDevice : native_holds_memory()) return;
  TORCH_CHECK(block && block->live && block->base == address,
              "annotateMemory: no live allocation found at pointer ", address);
  history_.annotated(key_of(*block), address, block->requested_bytes,
                     history_.gather(native::RecordContext::ALLOC), note);
}

void DeviceFacade::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void DeviceFacade::attachOomRejectionObserver(RejectionObserver observer) {
  std::lock_guard lock(mutex_);
  rejection_observers_.push_back(std::move(observer));
}

void DeviceFacade::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  history_.attach(std::move(tracker));
}

void DeviceFacade::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  if (has_native()) {  // which maps its expandable segments for the device
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
  // Without peer access, how native's memory is copied depends on how it was allocated.
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
