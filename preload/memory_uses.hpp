// Reports which served blocks kernels and graphs use to this process's live planner
// (docs/oversubscription.md, "Uses"). Starts when ServedMemory is made. If PyTorch's plugin reports
// the uses of its operators, this reports nothing. Thread-safe.
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

namespace detail {
// Constant-initialized: a launch may read them before this library's constructors have run.
inline constinit std::atomic<bool> wants_uses{false};
inline constinit std::atomic<bool> may_want_uses{false};
}  // namespace detail

// Whether a device is short of memory, so that launches must report their uses. One relaxed load.
inline bool wants_uses() noexcept {
  return detail::wants_uses.load(std::memory_order_relaxed);
}
// Whether wants_uses() may become true in this process.
inline bool may_want_uses() noexcept {
  return detail::may_want_uses.load(std::memory_order_relaxed);
}

// Starts to report uses to the allocator, unless PyTorch's plugin does.
void begin_to_note_uses(CachingManagedAllocator& allocator);

// A kernel or graph with these words is about to be launched. Reports the live blocks on the device
// that the words point into, except managed memory, which the program places itself.
void note_words(int device, StreamHandle stream, const Words& words, live::Launch launch);

// Whether a launch runs now: during a capture it does not, and the driver must not be queried.
bool runs_now(int device, StreamHandle stream);

// note_words() for a kernel that `call` launches; words() finds the words of its arguments.
template <class FindWords>
void note_launch(const char* call, int device, StreamHandle stream, FindWords words) noexcept {
  beside(call, [&] {
    if (runs_now(device, stream)) note_words(device, stream, words(), live::Launch::kKernel);
  });
}

}  // namespace uvm::preload
