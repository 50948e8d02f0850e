#include "operation_sequence.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace uvm::bench {

void OperationSequence::allocate(std::uint32_t slot, std::uint64_t size_bytes,
                                 std::uint16_t stream) {
  if (slot >= live_.size()) live_.resize(slot + std::size_t{1});
  if (size_bytes == 0) throw std::invalid_argument("an allocation of 0 bytes");
  if (live_[slot].size_bytes != 0) {
    throw std::invalid_argument("slot " + std::to_string(slot) + " is allocated twice");
  }
  live_[slot] = {size_bytes, slot, stream, OperationKind::kAllocate};
  operations.push_back(live_[slot]);
  slots = std::max(slots, slot + 1);
  streams = std::max<std::uint16_t>(streams, stream + 1);
}

void OperationSequence::free(std::uint32_t slot) {
  if (slot >= live_.size() || live_[slot].size_bytes == 0) {
    throw std::invalid_argument("slot " + std::to_string(slot) + " is freed but empty");
  }
  Operation freed = live_[slot];
  freed.kind = OperationKind::kFree;
  operations.push_back(freed);
  live_[slot] = {};
}

std::uint64_t OperationSequence::peak_live_bytes() const {
  std::uint64_t current = 0, peak = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == OperationKind::kAllocate) {
      current += operation.size_bytes;
      peak = std::max(peak, current);
    } else {
      current -= operation.size_bytes;
    }
  }
  return peak;
}

}  // namespace uvm::bench
