// A flat list of allocations and frees of numbered slots, for replays and all workloads of many
// blocks. The list is made before the clock starts, so all allocators get the same calls, and
// making the list costs no measured time. Plain values, no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace uvm::bench {

enum class OperationKind : std::uint8_t { kAllocate, kFree };

struct Operation {
  std::uint64_t size_bytes = 0;  // of the allocated or freed block
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  // 0: the default stream; n: the n-th other stream
  OperationKind kind = OperationKind::kAllocate;
};

struct OperationSequence {
  std::vector<Operation> operations;
  std::vector<std::size_t> step_begins;  // index of each step's first operation, ascending
  std::uint32_t slots = 0;
  std::uint16_t streams = 1;

  void allocate(std::uint32_t slot, std::uint64_t size_bytes, std::uint16_t stream = 0);
  // Appends the free of the block in `slot`, on the stream of its allocation. Throws
  // std::invalid_argument if the slot is empty.
  void free(std::uint32_t slot);
  // A step without operations does not count.
  void begin_step() {
    if (step_begins.empty() || step_begins.back() != operations.size()) {
      step_begins.push_back(operations.size());
    }
  }

  // The most bytes live at once, by the requested sizes.
  std::uint64_t peak_live_bytes() const;

 private:
  std::vector<Operation> live_;  // by slot; size 0: empty
};

}  // namespace uvm::bench
