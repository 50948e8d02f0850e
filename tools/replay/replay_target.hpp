// What a replay needs of an allocator. Derive from it to measure or check another one. Calls come
// from one thread, in the trace's order. Streams are numbered from 0 as the plan lists them.
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

  // Once, before the first call below.
  virtual void prepare(std::span<const ReplayStream> streams) = 0;
  // nullptr: out of memory.
  virtual void* allocate(Facade facade, int device, std::size_t size_bytes, int stream) = 0;
  // The others get the address of a block that is live. False: the target refuses.
  virtual bool free(void* address) = 0;
  // `stream` works on the block.
  virtual bool use(void* address, int stream) = 0;
  // A target that moves nothing ignores it.
  virtual bool move(void* /*address*/, Place /*source*/, Place /*destination*/, int /*stream*/) {
    return true;
  }
};

}  // namespace uvm::replay
