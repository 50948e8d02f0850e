#include "sim/engine/device_memory.hpp"

#include <algorithm>
#include <utility>

#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

constexpr std::size_t kSmallBelowBytes = std::size_t{1} << 20;
constexpr std::size_t kSmallUnitBytes = std::size_t{64} << 10;
constexpr std::size_t kContextShare = 64;
constexpr std::size_t kLargestContextBytes = std::size_t{512} << 20;

}  // namespace

std::size_t DeviceMemory::unevictable_at(std::size_t capacity_bytes) const {
  return charged_bytes_ + (has_context_ ? context_bytes(capacity_bytes) : 0);
}

std::size_t DeviceMemory::free_bytes() const {
  const std::size_t used = used_bytes();
  return capacity_bytes_ > used ? capacity_bytes_ - used : 0;
}

void DeviceMemory::note_peak() {
  peak_bytes_ = std::max(peak_bytes_, used_bytes());
}

void DeviceMemory::charge(std::size_t bytes) {
  charged_bytes_ += bytes;
  note_peak();
}

void DeviceMemory::open_context() {
  has_context_ = true;
  note_peak();
}

bool DeviceMemory::could_hold(std::size_t bytes) const {
  return bytes <= capacity_bytes_ && unevictable_bytes() <= capacity_bytes_ - bytes;
}

void DeviceMemory::move_to(Block& block, ChunkList list) {
  Block::Chunk& chunk = block.chunks[device_];
  const ChunkList before = std::exchange(chunk.list, list);
  if (list == ChunkList::kNone) {
    if (before != ChunkList::kNone) list_of(before).erase(chunk.position);
    managed_bytes_ -= std::exchange(chunk.charged_bytes, 0);
    return;
  }
  auto& target = list_of(list);
  if (before != ChunkList::kNone) {
    target.splice(target.end(), list_of(before), chunk.position);
    return;
  }
  chunk.position = target.insert(target.end(), &block);
  charge_held(block, kBlockBytes);
}

void DeviceMemory::charge_held(Block& block, std::size_t bytes) {
  Block::Chunk& chunk = block.chunks[device_];
  managed_bytes_ += bytes - std::exchange(chunk.charged_bytes, bytes);
  note_peak();
}

Block* DeviceMemory::victim() const {
  for (const auto& list : lists_) {
    if (!list.empty()) return list.front();
  }
  return nullptr;
}

std::size_t DeviceMemory::charge_of(std::size_t bytes) {
  return round_up(bytes, bytes < kSmallBelowBytes ? kSmallUnitBytes : kBlockBytes);
}

std::size_t DeviceMemory::context_bytes(std::size_t capacity_bytes) {
  return round_up(std::min(capacity_bytes / kContextShare, kLargestContextBytes), kSmallUnitBytes);
}

}  // namespace uvmsim
