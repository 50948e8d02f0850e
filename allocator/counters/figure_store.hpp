// Holds the figures that an allocator's report needs, in one piece of memory without pointers. If
// the memory is a shared mapping of a file, the file still has every figure after the process has
// ended or crashed.
//
// Outlives the parts of the allocator that count in the store. Each part guards its own figures;
// take_thread_counts() and the destructor of ThreadCounts are thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/statistics.hpp>
#include "allocator/counters/peak_tracker.hpp"
#include "allocator/counters/thread_counters.hpp"
#include "hints/hint_counters.hpp"
#include "runtime/counting_runtime.hpp"

namespace uvm {

// Host memory that a plugin took from malloc.
struct UnmanagedHost {
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<std::uint64_t> bytes{0};

  void count(std::uint64_t more_allocations, std::uint64_t more_bytes) {
    allocations.fetch_add(more_allocations, std::memory_order_relaxed);
    bytes.fetch_add(more_bytes, std::memory_order_relaxed);
  }
};

// The figures of a group of blocks when it last slept, woke or changed.
struct GroupLine {
  std::array<char, 65> name{};
  std::atomic<std::uint8_t> state{0};  // a GroupState
  std::atomic<bool> is_used{false};    // stored after the name, which does not change
  std::atomic<std::uint64_t> page_bytes{0};
  std::atomic<std::uint64_t> device_bytes{0};
  std::atomic<std::uint64_t> file_bytes{0};
  std::atomic<std::uint64_t> sleeps{0};
  std::atomic<std::uint64_t> wakes{0};
};
inline constexpr std::size_t kGroupLines = 32;  // later groups have no line
using GroupLines = std::array<GroupLine, kGroupLines>;

// The figures of a store at one moment.
struct Figures {
  struct OfGroup {
    std::string name;
    std::uint8_t state = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t device_bytes = 0;
    std::uint64_t file_bytes = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t wakes = 0;
  };
  struct OfFacade {
    std::uint64_t allocations = 0;
    std::uint64_t allocated_bytes = 0;
    std::uint64_t live_bytes = 0;
    std::uint64_t peak_bytes = 0;  // the sum of the devices' peaks
    std::uint64_t cache_hits = 0;
  };
  struct OfHints {
    std::uint64_t sent = 0;
    std::uint64_t bytes = 0;
    std::uint64_t failed = 0;
    std::array<std::uint64_t, kSkipReasons> skipped{};
  };
  std::string about;  // the string passed to describe()
  std::array<OfFacade, kFacades> facades{};
  std::uint64_t peak_bytes = 0;  // of all memory kinds together
  Totals totals;
  std::array<OfHints, kHintKinds> hints{};
  CountingRuntime::Calls calls;
  std::uint64_t unmanaged_host_allocations = 0;
  std::uint64_t unmanaged_host_bytes = 0;
  std::vector<OfGroup> groups;         // the first kGroupLines groups
  std::uint64_t threads_left_out = 0;  // threads whose counters did not fit in the store
};

class FigureStore {
 public:
  // Keeps the figures in ordinary memory. `counters` is the number of memory kinds times the number
  // of devices. Throws std::bad_alloc.
  explicit FigureStore(std::size_t counters);
  // Keeps the figures in `file`, or in ordinary memory if the file exists or cannot be created.
  FigureStore(std::size_t counters, const std::string& file);
  ~FigureStore();
  FigureStore(const FigureStore&) = delete;
  FigureStore& operator=(const FigureStore&) = delete;

  bool is_in_file() const { return !file_.empty(); }
  // Unlinks the file. The figures stay in the mapping.
  void remove_file() noexcept;
  // Called in a forked child, so that the child does not change the parent's figures.
  void leave_to_parent() noexcept;

  std::size_t counters() const { return counters_; }
  Totals& totals() { return fixed_->totals; }
  std::int64_t& peak_live_bytes() { return fixed_->peak_live_bytes; }
  HintCounters& hints() { return fixed_->hints; }
  CountingRuntime::Counters& calls() { return fixed_->calls; }
  GroupLines& groups() { return fixed_->groups; }
  UnmanagedHost& unmanaged_host() { return fixed_->unmanaged_host; }
  std::span<PeakTracker::Peaks> peaks() { return {peaks_, counters_}; }
  // The sums over ended threads, by index of the counter.
  std::span<ThreadCounters> ended() { return {thread_counts_, counters_}; }

  // Sets Figures::about. Returns false if the string is too long.
  bool describe(std::string_view text) noexcept;

  // One thread's counters, one for each memory kind and device, all zero at first. If the store is
  // full, the counters are in ordinary memory, and a reader of the file does not see them.
  class ThreadCounts {
   public:
    ThreadCounts(ThreadCounts&& other) noexcept;
    ThreadCounts& operator=(ThreadCounts&&) = delete;
    ~ThreadCounts();
    ThreadCounters& operator[](std::size_t counter) { return thread_counts_[counter]; }
    std::span<const ThreadCounters> all() const { return thread_counts_; }

   private:
    friend class FigureStore;
    ThreadCounts() = default;
    std::span<ThreadCounters> thread_counts_;
    std::atomic<bool>* taken_ = nullptr;  // nullptr if the counters are in `own_`
    std::unique_ptr<ThreadCounters[]> own_;
  };
  ThreadCounts take_thread_counts();

  // Returns all figures. No figure may change meanwhile. `sum` adds up all threads' counters.
  using SumOfCounter = std::function<ThreadCounters(std::size_t counter)>;
  Figures read(const SumOfCounter& sum) const;
  // Returns the figures that a process has left in a file. If the file cannot be read or is not a
  // store of this version, returns nullopt and sets `*why_not` to the reason in one line.
  static std::optional<Figures> read_file(const std::string& file, std::string* why_not);

 private:
  static constexpr std::size_t kThreads = 64;

  struct Header {
    std::array<char, 16> format;
    std::array<char, 16> version;
    std::uint64_t size_bytes;
    std::uint64_t fixed_bytes;
    std::uint64_t counters;
  };
  struct Fixed {
    Header header;
    std::array<char, 8192> about;
    std::atomic<std::uint64_t> threads_left_out;
    std::int64_t peak_live_bytes;
    Totals totals;
    HintCounters hints;
    CountingRuntime::Counters calls;
    UnmanagedHost unmanaged_host;
    GroupLines groups;
  };
  // Offsets of the parts that follow `Fixed`.
  struct Layout {
    explicit Layout(std::size_t counters);
    std::size_t peaks = 0;
    std::size_t thread_counts = 0;  // counters of ended threads, then of kThreads threads
    std::size_t size_bytes = 0;
  };

  void map_ordinary();
  bool map_file(const std::string& file);
  void make_parts();
  static bool is_ours(const Fixed& fixed, std::size_t size_bytes);
  static Figures figures_of(const Fixed& fixed, const PeakTracker::Peaks* peaks,
                            const SumOfCounter& sum);

  const std::size_t counters_;
  const Layout layout_;
  std::string file_;
  char* mapped_ = nullptr;
  Fixed* fixed_ = nullptr;
  PeakTracker::Peaks* peaks_ = nullptr;
  ThreadCounters* thread_counts_ = nullptr;
  std::array<std::atomic<bool>, kThreads> taken_{};
};

}  // namespace uvm
