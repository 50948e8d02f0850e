// Reports to this process's live planner which served blocks are used by kernels and graphs
// (docs/internals/oversubscription.md, "Uses"). Starts when ServedMemory is made. Reports nothing
// if PyTorch's plugin reports the uses of its operators. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/use_range.hpp>
#include "preload/interpose.hpp"

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::preload {

// The values in a kernel's arguments that may be addresses, each once, in order.
using Words = std::vector<std::uintptr_t>;

// What a graph uses. Words may point into blocks; blocks change between launches, so each launch
// checks the words again. A framework reports ranges.
struct Uses {
  Words words;
  std::vector<live::UseRange> ranges;
  bool empty() const { return words.empty() && ranges.empty(); }
};

namespace detail {
// Constant-initialized: a launch may read these before this library's constructors have run.
inline constinit std::atomic<bool> wants_uses{false};
inline constinit std::atomic<bool> may_want_uses{false};
}  // namespace detail

// Returns whether launches must report uses, because a device is short of memory. One relaxed load.
inline bool wants_uses() noexcept {
  return detail::wants_uses.load(std::memory_order_relaxed);
}
// Returns whether wants_uses() may become true in this process.
inline bool may_want_uses() noexcept {
  return detail::may_want_uses.load(std::memory_order_relaxed);
}

// Starts to report uses to the allocator, unless PyTorch's plugin reports them.
void begin_to_note_uses(CachingManagedAllocator& allocator);

// Returns the live blocks on the device that the words point into, each once, except managed
// memory, which the program places itself.
std::vector<live::UseRange> ranges_of(int device, const Words& words);
// Returns these blocks and the ranges that a framework has reported.
std::vector<live::UseRange> ranges_of(int device, const Uses& uses);
// Called before the launch of a kernel with these words. Reports ranges_of() them.
void note_words(int device, StreamHandle stream, const Words& words);
// Called before the launch of a graph, or of a part of it.
void note_graph_uses(int device, StreamHandle stream, const Uses& uses);
// Returns whether launches of graphs must report uses, those of a framework too.
bool wants_graph_uses() noexcept;

// Returns whether a launch runs now, which it does not during a capture. If not, do not query the
// driver.
bool runs_now(int device, StreamHandle stream);

// Calls note_words() for a kernel that `call` launches; words() finds the words of its arguments.
template <class FindWords>
void note_launch(const char* call, int device, StreamHandle stream, FindWords words) noexcept {
  beside(call, [&] {
    if (runs_now(device, stream)) note_words(device, stream, words());
  });
}

}  // namespace uvm::preload
