// The history of memory that torch's tools read: allocations and frees, stacks of live blocks,
// annotations, and trackers that libraries attach. Nothing is recorded until a program switches
// recording on.
//
// Thread-safe. Trackers are called with the mutex held; torch also calls them with its allocator's
// mutex held. The engine calls the functions of MemoryObserver under its lock, so nothing here may
// call the engine. Stacks are gathered without a lock, because gathering may take Python's lock.
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

// Returns the number of kinds of entries in this version of torch.
template <class Entry>
constexpr std::size_t actions() {
  if constexpr (requires { Entry::ANNOTATE; }) return std::size_t{Entry::ANNOTATE} + 1;
  return std::size_t{Entry::OOM} + 1;
}

class MemoryHistory final : public MemoryObserver {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Entry = native::TraceEntry;

  // Every allocation and free calls this function. It costs one load.
  bool is_watched() const noexcept { return watched_.load(std::memory_order_relaxed); }
  bool is_recording() const noexcept { return recording_.load(std::memory_order_relaxed); }

  // Same contract as torch's recordHistory. Throws c10::Error if stacks are wanted without a
  // function that gathers them, or if an action does not exist.
  void record(bool enabled, native::CreateContextFn gatherer, std::size_t most_entries,
              native::RecordContext when, bool clear, const std::vector<std::string>& skip_actions);
  void attach(native::AllocatorTraceTracker tracker);
  void annotate(c10::DeviceIndex device,
                const std::vector<std::pair<std::string, std::string>>& by);
  // As in torch, later entries of the calling thread contain these strings.
  void push_compile_context(std::string context);
  void pop_compile_context();
  void set_user_metadata(const std::string& metadata);
  std::string user_metadata() const;

  // Returns the caller's stack, or nullptr if stacks are not recorded at that level.
  Context gather(native::RecordContext level) const;

  // While an object of this class lives, pages that this thread adds to pools or removes from pools
  // are attributed to the stack `context`.
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
  // `waits`: the block is not free yet; free_completed() is called when it is.
  void free_requested(const StreamKey& pool, const void* address, std::size_t requested_bytes,
                      const Context& context, bool waits);
  void out_of_memory(const StreamKey& pool, std::size_t free_bytes, std::size_t requested_bytes,
                     const Context& context);
  // Adds an entry with `note`. Does nothing if this version of torch has no annotations.
  void annotated(const StreamKey& pool, const void* address, std::size_t requested_bytes,
                 const Context& context, const std::string& note);
  void snapshot_taken(c10::DeviceIndex device, std::size_t active_bytes, c10::MempoolId_t pool);

  void pages_added(const StreamKey& pool, void* base, std::size_t size_bytes) noexcept override;
  void pages_removed(const StreamKey& pool, void* base, std::size_t size_bytes) noexcept override;
  void free_completed(const StreamKey& pool, void* address,
                      std::size_t requested_bytes) noexcept override;

  // Returns the stack of the request that allocated the block, or nullptr if none was recorded.
  Context context_of(const void* address) const;
  // Returns the entries, oldest first, with times in microseconds since the epoch.
  std::vector<Entry> trace_of(c10::DeviceIndex device) const;
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations() const;

 private:
  static constexpr std::size_t kActions = actions<Entry>();

  // Keeps the newest entries. set_most() sets how many.
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

  mutable std::mutex mutex_;  // guards everything below; the atomics may be read without it
  std::atomic<bool> watched_ = false;
  std::atomic<bool> recording_ = false;
  std::atomic<native::RecordContext> when_ = native::RecordContext::NEVER;
  std::atomic<native::CreateContextFn> gather_ = nullptr;
  std::array<bool, kActions> skipped_{};
  std::size_t most_entries_ = 1;
  std::vector<Ring<Entry>> traces_;  // by device
  Ring<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::unordered_map<const void*, Context> contexts_;  // stacks of blocks in use
  // Blocks with a requested, incomplete free. free_completed() is also called for blocks that were
  // moved to the device; they are not in this set.
  std::unordered_set<const void*> waiting_;
  mutable c10::ApproximateClockToUnixTimeConverter clock_;
};

// Convert torch's id of a pool to the allocator's number, and back. One of the two numbers in an id
// is 0. Throws c10::Error for a pair that is not an id.
std::uint64_t pool_number(c10::MempoolId_t id);
c10::MempoolId_t pool_id(std::uint64_t number);

}  // namespace uvm::torch_plugin
