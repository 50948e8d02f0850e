// The allocator that a trace is replayed on. Derive a class to measure or check another allocator.
// All calls come from one thread, in the trace's order. Stream numbers index the plan's list.
#pragma once

#include <cstddef>
#include <span>

#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>

#include "tools/replay/replay_plan.hpp"

namespace uvm::replay {

class ReplayTarget {
 public:
  virtual ~ReplayTarget() = default;

  // Called once, before the first call below.
  virtual void prepare(std::span<const ReplayStream> streams) = 0;
  // Returns nullptr if memory runs out.
  virtual void* allocate(Facade facade, int device, std::size_t size_bytes, int stream) = 0;
  // The next three functions receive the address of a live block. They return false if they refuse.
  virtual bool free(void* address) = 0;
  // Records that `stream` uses the block.
  virtual bool use(void* address, int stream) = 0;
  // The default ignores moves.
  virtual bool move(void* /*address*/, Place /*source*/, Place /*destination*/, int /*stream*/) {
    return true;
  }
};

}  // namespace uvm::replay
