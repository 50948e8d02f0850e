// The uses of served memory that kernels and graphs make, for this process's live planner
// (docs/oversubscription.md, "Uses"). They are noted from the time when ServedMemory is made. Where
// PyTorch's plugin notes the uses of its operators, nothing is noted here. Thread-safe.
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

// The values of a kernel's arguments that may be addresses, each once, in their order.
using Words = std::vector<std::uintptr_t>;

namespace detail {
// Constant-initialized: launches read it before this library's constructors have run.
inline constinit std::atomic<bool> wants_uses{false};
inline constinit std::atomic<bool> may_want_uses{false};
}  // namespace detail

// Whether memory is short, so that launches are to be noted. One read of one variable.
inline bool wants_uses() noexcept {
  return detail::wants_uses.load(std::memory_order_relaxed);
}
// Whether uses may be wanted later in this process.
inline bool may_want_uses() noexcept {
  return detail::may_want_uses.load(std::memory_order_relaxed);
}

// The allocator's uses are noted from now on, unless somebody else does.
void begin_to_note_uses(CachingManagedAllocator& allocator);

// `stream` of `device` is about to get a kernel, or a graph of kernels, with these words. Blocks
// that they point into, and that are in use on the device, are used. A program places its managed
// memory itself: that is left out.
void note_words(int device, StreamHandle stream, const Words& words, live::Launch launch);

// Whether the stream is not being captured: then nothing runs yet, and nothing may be asked.
bool runs_now(int device, StreamHandle stream);

// The same for a kernel that a call launches, of which words() finds the words.
template <class FindWords>
void note_launch(const char* call, int device, StreamHandle stream, FindWords words) noexcept {
  beside(call, [&] {
    if (runs_now(device, stream)) note_words(device, stream, words(), live::Launch::kKernel);
  });
}

}  // namespace uvm::preload
