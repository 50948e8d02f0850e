#include <cuda_runtime_api.h>

#include <cstring>

#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "pytorch/plugin/call_sites.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/host_device.hpp"
#include "pytorch/plugin/out_of_memory.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/torch_statistics.hpp"

namespace uvm::torch_plugin {

c10::DataPtr PinnedFacade::allocate(size_t size_bytes) {
  if (activate_process_allocator().allocator == nullptr) {
    uninstall();
    return at::getHostAllocator(c10::kCUDA)->allocate(size_bytes);
  }
  try {
    void* address = allocate_in_region(Facade::kPinned, size_bytes, [&] {
      return allocator().allocate(Facade::kPinned, device_for_pinned_memory(), size_bytes);
    });
    trace_call_site(allocator(), address);
    if (open_pools_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      note_owner(address);
    return {address, address, &delete_pinned, c10::Device(c10::kCPU)};
  } catch (const OutOfMemoryError& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(Facade::kPinned, size_bytes),
                     "\n", error.what());
  }
}

c10::DeleterFnPtr PinnedFacade::raw_deleter() const {
  return &delete_pinned;
}

void PinnedFacade::delete_pinned(void* address) {
  PinnedFacade& pinned = *facades().pinned;
  // Another thread may have held the lock when the process was forked.
  if (pinned.owned_blocks_.load(std::memory_order_relaxed) != 0 &&
      !allocator().inspection().in_forked_child()) [[unlikely]] {
    if (pinned.is_kept(address)) return;
  }
  delete_block(address);
}

// If the current stream is being captured for a pool, assigns the new block to that pool.
void PinnedFacade::note_owner(void* address) {
  std::vector<std::pair<c10::MempoolId_t, std::function<bool(c10::Stream)>>> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      if (pool.filter) open.emplace_back(id, pool.filter);
    }
  }
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream();
  for (const auto& [id, filter] : open) {
    if (!filter(stream)) continue;
    std::lock_guard lock(mutex_);
    owners_[address] = id;
    ++owned_blocks_;
    return;
  }
}

// Returns whether the block belongs to a pool. If so, the pool keeps the block.
bool PinnedFacade::is_kept(void* address) {
  std::lock_guard lock(mutex_);
  auto owner = owners_.find(address);
  if (owner == owners_.end()) return false;
  pools_.at(owner->second).freed.push_back(address);
  return true;
}

void PinnedFacade::begin_allocate_to_pool(c10::MempoolId_t id,
                                          std::function<bool(c10::Stream)> filter) {
  std::lock_guard lock(mutex_);
  Pool& pool = pools_[id];
  TORCH_CHECK(!pool.filter, "beginAllocateToPool: already recording to mempool_id");
  ++pool.users;
  pool.filter = std::move(filter);
  ++open_pools_;
}

void PinnedFacade::end_allocate_to_pool(c10::MempoolId_t id) {
  std::lock_guard lock(mutex_);
  auto found = pools_.find(id);
  TORCH_CHECK(found != pools_.end() && found->second.filter,
              "endAllocatePool: not currently recording to mempool_id");
  found->second.filter = nullptr;
  --open_pools_;
}

void PinnedFacade::release_pool(c10::MempoolId_t id) {
  std::unique_lock lock(mutex_);
  auto found = pools_.find(id);
  if (found == pools_.end() && native_pinned() != nullptr) {
    // The pool was created before the plugin was installed, or never; then torch reports an error.
    lock.unlock();
    native_pinned()->release_pool(id);
    return;
  }
  TORCH_CHECK(found != pools_.end(), "memory pool (", id.first, ", ", id.second,
              ") has no user among pinned pools");
  if (--found->second.users != 0) return;
  if (found->second.filter) --open_pools_;  // the pool is still open, so the capture has failed
  const std::vector<void*> freed = std::move(found->second.freed);
  pools_.erase(found);
  owned_blocks_ -= std::erase_if(owners_, [&](const auto& block) { return block.second == id; });
  lock.unlock();
  for (void* address : freed) delete_block(address);
}

void PinnedFacade::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  std::memcpy(destination, source, size_bytes);
}

namespace {

// CUDA stages copies of pageable host memory: when the call returns, the copy no longer uses that
// memory. A copy from or to managed memory still uses it, so wait.
void wait_unless_pinned(const void* address, cudaStream_t stream) {
  const auto block = allocator().find(address);
  if (!block || block->pinned || at::globalContext().isPinnedPtr(address, c10::kCUDA)) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  // A wait would invalidate the capture. Torch refuses such copies or leaves them to the driver.
  if (capture != cudaStreamCaptureStatusNone) return;
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

// Torch calls this after every non-blocking copy between host and device.
bool PinnedFacade::record_event(void* address, void* context, c10::Stream stream) {
  const c10::cuda::CUDAStream on(stream);
  if (allocator().record_use(address, stream.device_index(), on.stream())) {
    wait_unless_pinned(address, on.stream());
    return true;
  }
  at::HostAllocator* before = native_pinned();
  return before != nullptr && before->record_event(address, context, stream);
}

void PinnedFacade::empty_cache() {
  allocator().release_cached_of(Facade::kPinned);
  if (at::HostAllocator* before = native_pinned()) before->empty_cache();
}

at::HostStats PinnedFacade::get_stats() {
  return host_stats(allocator().statistics());
}

void PinnedFacade::reset_accumulated_stats() {
  for (int device = 0; device < allocator().inspection().runtime().device_count(); ++device) {
    allocator().reset_totals(Facade::kPinned, device);
  }
}

void PinnedFacade::reset_peak_stats() {
  for (int device = 0; device < allocator().inspection().runtime().device_count(); ++device) {
    allocator().reset_peaks(Facade::kPinned, device);
  }
}

}  // namespace uvm::torch_plugin
