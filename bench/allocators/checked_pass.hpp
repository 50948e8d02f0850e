// A pass through a sequence without a clock. Counts failed requests, and blocks that overlap live
// blocks. Every allocator first makes this pass of each replay: if an allocator hands out too
// little memory, or the same memory twice, its times are meaningless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "operation_sequence.hpp"
#include "tools/replay/live_ranges.hpp"

namespace uvm::bench {

struct CheckedPass {
  std::size_t failed_requests = 0;
  std::size_t overlapping_blocks = 0;
};

template <class Adapter, class Stream>
class PassChecker {
 public:
  PassChecker(Adapter& allocator, const OperationSequence& sequence,
              const std::vector<Stream>& streams)
      : allocator_(allocator), sequence_(sequence), streams_(streams), held_(sequence.slots) {}

  // Frees the blocks that the sequence does not free. Skips failed requests and their frees.
  CheckedPass run() {
    for (const Operation& operation : sequence_.operations) {
      if (operation.kind == OperationKind::kAllocate) {
        allocate(operation);
      } else {
        free(held_[operation.slot]);
      }
    }
    for (Held& held : held_) free(held);
    return pass_;
  }

 private:
  struct Held {
    void* block = nullptr;
    const Operation* request = nullptr;
    bool is_alone = false;  // overlaps no live block, so it is in live_
  };

  void allocate(const Operation& operation) {
    Held& held = held_[operation.slot];
    try {
      held = {allocator_.allocate(operation.size_bytes, streams_[operation.stream]), &operation};
    } catch (const std::exception&) {  // torch's allocator has its own exception for this
    }
    if (held.block == nullptr) {
      ++pass_.failed_requests;
      return;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(held.block);
    held.is_alone = !live_.add(begin, operation.size_bytes);
    pass_.overlapping_blocks += !held.is_alone;
  }

  void free(Held& held) {
    if (held.block == nullptr) return;
    if (held.is_alone) live_.remove(reinterpret_cast<std::uintptr_t>(held.block));
    allocator_.free(held.block, held.request->size_bytes, streams_[held.request->stream]);
    held = {};
  }

  Adapter& allocator_;
  const OperationSequence& sequence_;
  const std::vector<Stream>& streams_;
  std::vector<Held> held_;  // by slot
  replay::LiveRanges live_;
  CheckedPass pass_;
};

}  // namespace uvm::bench
