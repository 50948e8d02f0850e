// Gives idle memory back to the driver (UVMALLOC_DECAY; decay.hpp). Reads the clock on the
// allocator's slow paths, which programs seldom take. Thread-safe; takes the state lock itself.
#pragma once

#include <atomic>
#include <cstddef>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/reclaim/decay.hpp"
#include "allocator/reclaim/reclaimer.hpp"
#include "allocator/streams/displaced_blocks.hpp"

namespace uvm {

class IdleDecay {
 public:
  IdleDecay(Machine& machine, HeapState& state, ThreadCaches& caches, DisplacedBlocks& displaced,
            Reclaimer& reclaimer)
      : machine_(machine),
        state_(state),
        caches_(caches),
        displaced_(displaced),
        reclaimer_(reclaimer),
        decay_(Decay::Duration(machine.configuration.decay_seconds)) {}
  IdleDecay(const IdleDecay&) = delete;
  IdleDecay& operator=(const IdleDecay&) = delete;

  bool enabled() const UVM_NOT_ANALYSED { return decay_.enabled(); }  // never changes
  // Gives back the bytes that are due at `now`. Throws std::bad_alloc if there is no memory to list
  // them.
  void decay(Decay::Time now);
  // Calls decay() with the current time. If memory runs out, gives nothing back.
  void decay_now() noexcept;
  // Calls decay_now() every policy::kSlowCallsPerClockRead calls.
  void now_and_then() {
    if (enabled()) [[unlikely]]
      every_so_often();
  }
  // For a request that found no block: gives back the due bytes. Returns false if decay is off or a
  // stream is being captured.
  bool under_pressure();

 private:
  void every_so_often() noexcept;

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  DisplacedBlocks& displaced_;
  Reclaimer& reclaimer_;
  Decay decay_ UVM_GUARDED_BY(state_);
  std::size_t cached_by_threads_ UVM_GUARDED_BY(state_) =
      0;  // bytes in thread caches at the end of the last period
  std::atomic<unsigned> slow_calls_ = 0;
};

}  // namespace uvm
