// The three allocators that the plugin installs in torch: CPU, pinned and CUDA. Each is a thin
// layer over the process's allocator. The context of their data pointers is the address itself,
// because torch's raw_allocate needs that. Facts about a block are looked up by its address. Calls
// for memory of torch's own allocators are forwarded to those allocators.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "pytorch/plugin/device_pools.hpp"
#include "pytorch/plugin/memory_history.hpp"

namespace uvm::torch_plugin {

// Frees a block of the process's allocator.
void delete_block(void* address);

// Frees a block of EarlyBlocks. is_early() recognises early blocks by this deleter.
void delete_early(void* address);

// Returns the data pointer of a managed block for a CPU tensor.
c10::DataPtr managed_host_data(void* address, std::size_t size_bytes);

// The CPU allocator. Requests of UVMALLOC_HOST_THRESHOLD or more get managed blocks. malloc serves
// smaller requests, forked children, and requests before CPU tensors can be managed (see
// host_device.hpp).
class HostFacade final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t size_bytes) const override;
};

// The pinned allocator. Blocks that are allocated in a capture belong to the pool of its graph,
// because a replay uses them again. They are freed with the last user of the pool, not with their
// tensors. Thread-safe.
class PinnedFacade final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t size_bytes) const override;
  // Returns false if the block belongs to no allocator of pinned memory.
  bool record_event(void* address, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
  void begin_allocate_to_pool(c10::MempoolId_t id,
                              std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t id) override;
  void release_pool(c10::MempoolId_t id) override;

 private:
  struct Pool {
    int users = 0;
    std::function<bool(c10::Stream)> filter;  // empty: the pool is not open
    std::vector<void*> freed;                 // blocks that their tensors have freed
  };
  static void delete_pinned(void* address);
  void note_owner(void* address);
  bool is_kept(void* address);

  std::atomic<int> open_pools_ = 0;
  std::atomic<std::size_t> owned_blocks_ = 0;
  std::mutex mutex_;  // guards the members below
  std::map<c10::MempoolId_t, Pool> pools_;
  std::unordered_map<void*, c10::MempoolId_t> owners_;
};

// While a MemoryScope lives, either all or none of this thread's allocations are managed,
// independently of their size. Unmanaged memory comes from malloc on the host, and from torch's own
// allocator on a device.
class MemoryScope {
 public:
  explicit MemoryScope(bool managed);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  HostMemory host_before_;
  bool device_before_;
};

class DeviceFacade final : public native::CUDAAllocator {
 public:
  // Pointers that the process's allocator does not know are forwarded to `previous`.
  explicit DeviceFacade(native::CUDAAllocator* previous)
      : previous_(previous),
        pools_(previous),
        limits_(C10_COMPILE_TIME_MAX_GPUS),
        rejections_(C10_COMPILE_TIME_MAX_GPUS) {}
  native::CUDAAllocator* previous() const { return previous_; }

  // Call it if torch's own allocator has been in use: torch does not call init() a second time.
  void init_late();

  c10::DataPtr allocate(size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  // Changes the budget of a device; without a size, restores the budget at the start.
  void set_budget(c10::DeviceIndex device, std::optional<std::size_t> most_bytes);
  static std::size_t total_bytes(c10::DeviceIndex device);

  // Copies on the current stream of the destination's device. Before a kernel writes to a shared
  // block, torch calls this function to make the writer's copy.
  void copy_data(void* destination, const void* source, std::size_t size_bytes) const override;
  bool initialized() override { return initialized_.load(); }
  void emptyCache(c10::MempoolId_t pool) override;
  // Includes the blocks of torch's own allocator: those allocated before the plugin was installed,
  // and those in pools that have their own allocator.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;

  void* raw_alloc(size_t size_bytes) override;
  void* raw_alloc_with_stream(size_t size_bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  // Same as raw_delete(), but returns the error instead of throwing.
  FreeResult give_back(void* address);
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
  void enable(bool value) override;
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex device, size_t* largest_block) override;
  void* getBaseAllocation(void* address, size_t* size_bytes) override;
  using native::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  native::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override;
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override;
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                          std::shared_ptr<native::CUDAAllocator> own) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                const std::unordered_set<void*>& expected) override;
  native::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool enabled, native::CreateContextFn gather, size_t most_entries,
                     native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip_actions) override;
  // Adds an entry to the history of the device, if it is recorded.
  void annotate(c10::DeviceIndex device,
                const std::vector<std::pair<std::string, std::string>>& by) {
    history_.annotate(device, by);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& by) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  // These functions are virtual only in later versions of torch, so they have no `override`. Throws
  // if the block that a request for `size_bytes` gets is not at `address`.
  c10::DataPtr allocateWithAddress(size_t size_bytes, void* address);
  // A capture of torch 2.13 or later has begun or ended. Torch's own allocator serves unmanaged
  // memory then, and defers calls that a capture forbids.
  void markCaptureBegin(c10::DeviceIndex device);
  void markCaptureEnd(c10::DeviceIndex device);
  bool supportsUserMetadata() { return true; }
  void annotateMemory(const void* address, const std::string& note);
  MemoryHistory::Context getContextForPointer(const void* address) {
    return history_.context_of(address);
  }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  // If throw_on_cudamalloc_oom is set, torch calls these observers instead of OutOfMemoryObserver.
  using RejectionObserver = std::function<void(int64_t device, size_t size_bytes,
                                               size_t reserved_bytes, size_t total_bytes)>;
  void attachOomRejectionObserver(RejectionObserver observer);
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* destination, int to_device, const void* source, int from_device,
                          size_t size_bytes, cudaStream_t stream, bool have_peer_access) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex,
                                                             c10::MempoolId_t) override;
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                                 std::shared_ptr<native::AllocatorState>) override;
  std::string name() override { return "uvmalloc"; }

  // Throws torch's out-of-memory error for a request, or a move, that finds no room on the device.
  [[noreturn]] void out_of_memory(const OutOfMemoryError& error, c10::DeviceIndex device,
                                  size_t size_bytes, cudaStream_t stream,
                                  const MemoryHistory::Context& context);

 private:
  struct Limit {
    double fraction = 1.0;
    std::size_t budget_bytes = SIZE_MAX;
    std::size_t bytes = SIZE_MAX;  // the smaller of the two limits
  };
  Limit limit_of(c10::DeviceIndex device);
  std::uint64_t rejections_of(c10::DeviceIndex device);
  void* allocate_on(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream);
  void* allocate_in_regions(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream);
  void* allocate_watched(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream);
  template <bool kInRegion>
  inline void* allocate_or_throw(c10::DeviceIndex device, size_t size_bytes, cudaStream_t stream,
                                 const MemoryHistory::Context& context);
  // Both functions call the registered observers.
  void tell_out_of_memory(c10::DeviceIndex device, size_t size_bytes, size_t allowed_bytes,
                          size_t free_bytes);
  void tell_of_rejection(c10::DeviceIndex device, size_t size_bytes, size_t reserved_bytes,
                         size_t total_bytes);
  void report_allocated(void* address, size_t size_bytes, const MemoryHistory::Context& context);
  void report_freed(void* address);
  static void check_device(c10::DeviceIndex device);
  void change_limit(c10::DeviceIndex device, std::optional<double> fraction,
                    std::optional<std::size_t> budget_bytes);
  void set_first_limits(int device_count);
  bool has_native() const;  // whether torch's own allocator is in use too
  bool native_holds_memory() const;
  bool is_watched() const;

  native::CUDAAllocator* previous_;
  std::atomic<bool> initialized_{false};
  MemoryHistory history_;
  DevicePools pools_;
  std::mutex limit_changes_;  // one thread at a time changes a limit
  std::mutex mutex_;          // guards the members below
  std::vector<native::OutOfMemoryObserver> observers_;
  std::vector<RejectionObserver> rejection_observers_;
  std::vector<Limit> limits_;              // by device
  std::vector<std::uint64_t> rejections_;  // by device
};

struct Facades {
  HostFacade* host = nullptr;
  PinnedFacade* pinned = nullptr;
  DeviceFacade* device = nullptr;

  c10::Allocator* of(c10::Device place) const {
    return place.is_cuda() ? static_cast<c10::Allocator*>(device)
                           : static_cast<c10::Allocator*>(host);
  }
};

// Returns torch's own allocator of pinned memory, or nullptr if it is unknown.
at::HostAllocator* native_pinned();

// Set once by install(); the objects live for ever.
inline Facades installed_facades;
inline const Facades& facades() {
  return installed_facades;
}

inline std::atomic<CachingManagedAllocator*> known_allocator = nullptr;  // set by find_allocator()
CachingManagedAllocator& find_allocator();

// Returns the process's allocator. Throws c10::Error if uvmalloc cannot be active.
inline CachingManagedAllocator& allocator() {
  CachingManagedAllocator* known = known_allocator.load(std::memory_order_acquire);
  return known != nullptr ? *known : find_allocator();
}

// Returns the handle of this thread's current stream on the device.
cudaStream_t current_stream(c10::DeviceIndex device);

// Takes the counts of torch's own allocators before torch destroys them. Call it after `import
// torch`, at the first use of the process's allocator.
void count_native_allocations_at_exit();

// Installs the three allocators in torch. A second call changes nothing. Memory that torch has
// already allocated stays with torch's own allocators.
void install();

// Restores torch's own allocators if there turns out to be no usable device.
void uninstall();

}  // namespace uvm::torch_plugin
