// Gives back memory that has been idle (UVMALLOC_DECAY; decay.hpp). The time is looked at on the
// longer ways through the allocator, which steady programs seldom take.
#pragma once

#include <atomic>
#include <cstddef>

#include <uvmalloc/allocator/cache/thread_caches.hpp>
#include <uvmalloc/allocator/engine/decay.hpp>
#include <uvmalloc/allocator/engine/reclaimer.hpp>

namespace uvm {

class IdleDecay {
 public:
  IdleDecay(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced,
            Reclaimer& reclaimer)
      : machine_(machine),
        state_(state),
        caches_(caches),
        fenced_(fenced),
        reclaimer_(reclaimer),
        decay_(Decay::Duration(machine.configuration.decay_seconds)) {}
  IdleDecay(const IdleDecay&) = delete;
  IdleDecay& operator=(const IdleDecay&) = delete;

  bool enabled() const { return decay_.enabled(); }
  // What is due at `now`. std::bad_alloc: there is no memory to list it.
  void decay(Decay::Time now);
  // The same with the present time; without memory, what is due stays.
  void decay_now() noexcept;
  // The same every so many calls.
  void now_and_then() {
    if (enabled()) [[unlikely]]
      every_so_often();
  }
  // What is due before anything else is done for a request. False: nothing decays.
  bool under_pressure();

 private:
  void every_so_often() noexcept;

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
  Reclaimer& reclaimer_;
  Decay decay_;                        // guarded by the state lock, but for enabled()
  std::size_t cached_by_threads_ = 0;  // bytes, at the last period; guarded likewise
  std::atomic<unsigned> slow_calls_ = 0;
};

}  // namespace uvm
