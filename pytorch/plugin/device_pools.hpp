// Private pools of device memory under the ids that torch gives them: pools of graphs and of
// MemPool. Pools with their own allocator stay with torch's native allocator, and their memory is
// never managed. The native allocator gets each capture of our pools too: until the capture ends it
// makes no call that a capture forbids, and unmanaged memory that the capture uses stays the
// graph's.
//
// Thread-safe. A mutex guards the open scopes. Filters are called without the mutex.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>

#include "allocator/interface.hpp"

namespace uvm::torch_plugin {

namespace native = c10::cuda::CUDACachingAllocator;

class DevicePools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  // `fallback` is torch's native allocator, or nullptr if there is none.
  explicit DevicePools(native::CUDAAllocator* fallback) : fallback_(fallback) {}

  // Pools that torch created before the plugin was installed stay with the native allocator.
  void expect_earlier() { has_earlier_ = fallback_ != nullptr; }

  // Same contracts as torch's functions with these names. Throw c10::Error if the pool is in the
  // wrong state.
  void create_or_retain(c10::DeviceIndex device, c10::MempoolId_t id,
                        std::shared_ptr<native::CUDAAllocator> own);
  void begin(c10::DeviceIndex device, c10::MempoolId_t id, Filter filter);
  void end(c10::DeviceIndex device, c10::MempoolId_t id);
  // Ends the pools whose captures this thread began and that have failed: torch does not end them.
  // Call it on a stream that is not being captured.
  void end_failed_captures();
  void release(c10::DeviceIndex device, c10::MempoolId_t id);
  int use_count(c10::DeviceIndex device, c10::MempoolId_t id);
  void set_use_on_oom(c10::DeviceIndex device, c10::MempoolId_t id, bool use);
  void set_no_split(c10::DeviceIndex device, c10::MempoolId_t id);
  void empty(c10::DeviceIndex device, c10::MempoolId_t id);
  std::shared_ptr<native::AllocatorState> checkpoint(c10::DeviceIndex device, c10::MempoolId_t id);
  // Sets `deleter` as the deleter of the restored blocks.
  native::CheckpointDelta restore(c10::DeviceIndex device,
                                  const std::shared_ptr<native::AllocatorState>& state,
                                  c10::DeleterFnPtr deleter);
  bool has_exactly(c10::DeviceIndex device, c10::MempoolId_t id,
                   const std::unordered_set<void*>& blocks);

  // Whether a request on the stream goes to a pool of the native allocator.
  bool is_foreign(c10::DeviceIndex device, cudaStream_t stream) const {
    return open_foreign_count_.load(std::memory_order_relaxed) != 0 &&
           goes_to_foreign(device, stream);
  }

  // Retries a failed request in the pools that torch allows for it (setUseOnOOM). Returns nullptr
  // if none of them has room.
  void* allocate_from_pools_for_oom(c10::DeviceIndex device, std::size_t size_bytes,
                                    cudaStream_t stream);

 private:
  using Key = std::pair<c10::DeviceIndex, c10::MempoolId_t>;
  // An open pool. The innermost scope that accepts a stream's requests gets them.
  struct Scope {
    Key key;
    Filter filter;
    bool is_for_capture = false;
    bool is_foreign = false;
    cudaStream_t stream = nullptr;  // on which the capture begins
    std::thread::id thread = std::this_thread::get_id();
  };

  bool goes_to_foreign(c10::DeviceIndex device, cudaStream_t stream) const;
  // Closes the pool. Returns whether it was open for a capture, or nullopt if it was not open.
  std::optional<bool> close(const Key& key);
  // Ends the pool, which was closed, in the allocator.
  void end_closed(const Key& key, bool was_for_capture);
  bool is_own(const Key& key) const;  // false: the pool belongs to the native allocator
  bool is_earlier(const Key& key) const;
  void begin_in_native(const Key& key, const Filter& filter);
  void end_in_native(const Key& key);
  void release_in_native(const Key& key);

  native::CUDAAllocator* const fallback_;
  std::atomic<bool> has_earlier_ = false;
  std::atomic<int> open_foreign_count_ = 0;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Scope> open_;   // the innermost is last
  std::set<Key> failed_;      // ended by end_failed_captures()
  std::set<Key> foreign_;
  std::set<Key> for_oom_;
  std::map<Key, int> in_native_;  // our pools: their captures, which the native allocator has too
};

}  // namespace uvm::torch_plugin
