// The history of memory that torch's tools read: allocations and frees, stacks of live blocks,
// annotations, and the trackers that libraries attach. Nothing is kept unless a program switches it
// on.
//
// Thread-safe. Trackers are called under its mutex, as torch calls them under its allocator's.
// MemoryObserver's functions are called under the engine's lock, so nothing here may call the
// engine. Stacks are gathered without a lock, because that may take Python's.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>

#include "allocator/memory_observer.hpp"
#include "storage/pages.hpp"

namespace uvm::torch_plugin {

namespace native = c10::cuda::CUDACachingAllocator;

// The number of kinds of entries in this version of torch.
template <class Entry>
constexpr std::size_t actions() {
  if constexpr (requires { Entry::ANNOTATE; }) return std::size_t{Entry::ANNOTATE} + 1;
  return std::size_t{Entry::OOM} + 1;
}

class MemoryHistory final : public MemoryObserver {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Entry = native::TraceEntry;

  // Every allocation and free calls it: one load.
  bool is_watched() const noexcept { return watched_.load(std::memory_order_relaxed); }
  bool is_recording() const noexcept { return recording_.load(std::memory_order_relaxed); }

  // Torch's recordHistory. c10::Error if stacks are wanted without a function that gathers them, or
  // an action does not exist.
  void record(bool enabled, native::CreateContextFn gatherer, std::size_t most_entries,
              native::RecordContext when, bool clear, const std::vector<std::string>& skip_actions);
  void attach(native::AllocatorTraceTracker tracker);
  void annotate(c10::DeviceIndex device,
                const std::vector<std::pair<std::string, std::string>>& by);
  // Entries of the calling thread carry these from now on, as in torch.
  void push_compile_context(std::string context);
  void pop_compile_context();
  void set_user_metadata(const std::string& metadata);
  std::string user_metadata() const;

  // The caller's stack; nullptr: stacks are not kept at that level.
  Context gather(native::RecordContext level) const;

  // While one lives, pages that this thread adds to pools or takes out of them are attributed to
  // this stack.
  class PagesScope {
   public:
    explicit PagesScope(const Context& context) { current() = &context; }
    ~PagesScope() { current() = nullptr; }
    PagesScope(const PagesScope&) = delete;
    PagesScope& operator=(const PagesScope&) = delete;

    static const Context*& current() {
      thread_local const Context* context = nullptr;
      return context;
    }
  };

  void allocated(const StreamKey& pool, const void* address, std::size_t requested_bytes,
                 const Context& context);
  // `waits`: free_completed() follows when the block is free.
  void free_requested(const StreamKey& pool, const void* address, std::size_t requested_bytes,
                      const Context& context, bool waits);
  void out_of_memory(const StreamKey& pool, std::size_t free_bytes, std::size_t requested_bytes,
                     const Context& context);
  // Adds an entry with `note`; does nothing if this version of torch has no annotations.
  void annotated(const StreamKey& pool, const void* address, std::size_t requested_bytes,
                 const Context& context, const std::string& note);
  void snapshot_taken(c10::DeviceIndex device, std::size_t active_bytes, c10::MempoolId_t pool);

  void pages_added(const StreamKey& pool, void* base, std::size_t size_bytes) noexcept override;
  void pages_removed(const StreamKey& pool, void* base, std::size_t size_bytes) noexcept override;
  void free_completed(const StreamKey& pool, void* address,
                      std::size_t requested_bytes) noexcept override;

  // The stack of the request that allocated the block; nullptr: none was kept.
  Context context_of(const void* address) const;
  // Oldest first, with times in microseconds since the epoch.
  std::vector<Entry> trace_of(c10::DeviceIndex device) const;
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations() const;

 private:
  static constexpr std::size_t kActions = actions<Entry>();

  // The newest entries, up to the number of set_most().
  template <class T>
  class Ring {
   public:
    void set_most(std::size_t most) {
      most_ = most;
      while (entries_.size() > most_) entries_.pop_front();
    }
    void add(T entry) {
      entries_.push_back(std::move(entry));
      if (entries_.size() > most_) entries_.pop_front();
    }
    void clear() { entries_.clear(); }
    const std::deque<T>& entries() const { return entries_; }

   private:
    std::size_t most_ = 1;
    std::deque<T> entries_;
  };

  void add(Entry::Action action, const StreamKey& pool, std::size_t address, std::size_t size_bytes,
           const Context& context);
  void add(Entry::Action action, const StreamKey& pool, std::size_t address, std::size_t size_bytes,
           const Context& context, const std::string& metadata);
  void update_watched();

  mutable std::mutex mutex_;  // guards everything below; of the atomics, only writes
  std::atomic<bool> watched_ = false;
  std::atomic<bool> recording_ = false;
  std::atomic<native::RecordContext> when_ = native::RecordContext::NEVER;
  std::atomic<native::CreateContextFn> gather_ = nullptr;
  std::array<bool, kActions> skipped_{};
  std::size_t most_entries_ = 1;
  std::vector<Ring<Entry>> traces_;  // by device
  Ring<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::unordered_map<const void*, Context> contexts_;  // of blocks in use
  // Blocks whose free was requested and is not complete. free_completed() also comes for blocks
  // that were moved to the device, which are not in this set.
  std::unordered_set<const void*> waiting_;
  mutable c10::ApproximateClockToUnixTimeConverter clock_;
};

// The allocator's number for torch's id of a pool, and back. Of an id's two numbers one is 0.
// c10::Error for a pair that is no id.
std::uint64_t pool_number(c10::MempoolId_t id);
c10::MempoolId_t pool_id(std::uint64_t number);

}  // namespace uvm::torch_plugin
