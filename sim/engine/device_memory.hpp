// Memory of one device: capacity, unevictable charges, its context, and the 2 MiB chunks that
// managed blocks hold. The chunks are on lists in the order of eviction: unused chunks (no page is
// resident), discarded ones (every page is discarded), then used ones. The chunk that became
// resident first comes first.
// Accounting only; it moves nothing. Guarded by the machine's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <list>

#include "sim/engine/block.hpp"

namespace uvmsim {

class DeviceMemory {
 public:
  DeviceMemory(int device, std::size_t capacity_bytes)
      : device_(static_cast<std::size_t>(device)), capacity_bytes_(capacity_bytes) {}

  std::size_t capacity_bytes() const { return capacity_bytes_; }
  void set_capacity(std::size_t bytes) { capacity_bytes_ = bytes; }

  std::size_t unevictable_bytes() const { return unevictable_at(capacity_bytes_); }
  // The same if the capacity were another.
  std::size_t unevictable_at(std::size_t capacity_bytes) const;
  std::size_t managed_bytes() const { return managed_bytes_; }
  std::size_t charged_bytes() const { return charged_bytes_; }

  // What is free now; 0 while the capacity has been shrunk below what is in use.
  std::size_t free_bytes() const;

  // The most that was in use at once since the last reset.
  std::size_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = used_bytes(); }

  // Whether `bytes` more can be had by evicting everything that can be evicted.
  bool could_hold(std::size_t bytes) const;

  // Unevictable memory; the caller has made room.
  void charge(std::size_t bytes);
  void release(std::size_t bytes) { charged_bytes_ -= bytes; }

  // From now on the device's context takes its part of the memory, if it can be had.
  void open_context();
  void close_context() { has_context_ = false; }

  // Puts the chunk that `block` holds here, or gets now, at the end of `list`; kNone gives the
  // chunk up.
  void move_to(Block& block, ChunkList list);

  // What the block holds here takes `bytes` from now on: pages of ordinary memory are had one by
  // one.
  void charge_held(Block& block, std::size_t bytes);

  // The block whose chunk is evicted next, or null where no managed block holds any.
  Block* victim() const;

  // What an allocation of `bytes` is charged: whole 64 KiB below 1 MiB, whole 2 MiB chunks from
  // there.
  static std::size_t charge_of(std::size_t bytes);

  // What a context takes of a device of that capacity: a 64th, at most 512 MiB, as one of a large
  // device does. Whole 64 KiB.
  static std::size_t context_bytes(std::size_t capacity_bytes);

 private:
  std::size_t used_bytes() const { return unevictable_bytes() + managed_bytes(); }
  void note_peak();
  std::list<Block*>& list_of(ChunkList list) { return lists_[static_cast<std::size_t>(list)]; }

  std::size_t device_;
  std::size_t capacity_bytes_;
  std::size_t charged_bytes_ = 0;
  std::size_t managed_bytes_ = 0;  // that blocks hold
  bool has_context_ = false;
  std::size_t peak_bytes_ = 0;
  std::array<std::list<Block*>, 3> lists_;
};

}  // namespace uvmsim
