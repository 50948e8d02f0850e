// Accounts for the memory of one device: the capacity, unevictable charges, the device's context,
// and the 2 MiB chunks that managed blocks hold. The chunks are on lists in the order of eviction:
// unused chunks (no page is resident), discarded chunks (every page is discarded), then used
// chunks. A list starts with the chunk that was added first. Moves no pages. Guarded by the
// machine's mutex.
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
  // Returns the result that unevictable_bytes() would have with that capacity.
  std::size_t unevictable_at(std::size_t capacity_bytes) const;
  std::size_t managed_bytes() const { return managed_bytes_; }
  std::size_t charged_bytes() const { return charged_bytes_; }

  // Returns the free bytes; 0 while the capacity is below the bytes in use.
  std::size_t free_bytes() const;

  // Returns the most bytes in use since the last reset.
  std::size_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = used_bytes(); }

  // Returns whether `bytes` more fit after all evictable memory was evicted.
  bool could_hold(std::size_t bytes) const;

  // Charges unevictable memory. The caller must have made room.
  void charge(std::size_t bytes);
  void release(std::size_t bytes) { charged_bytes_ -= bytes; }

  // Charges the memory of the device's context. The caller must have made room.
  void open_context();
  void close_context() { has_context_ = false; }

  // Moves the chunk of `block` to the end of `list`, and gives the block a chunk if it has none;
  // kNone releases the chunk.
  void move_to(Block& block, ChunkList list);

  // Sets the block's charge on this device to `bytes`. A block of ordinary memory (malloc, mmap)
  // may hold less than a chunk on the device.
  void charge_held(Block& block, std::size_t bytes);

  // Returns the block whose chunk is evicted next, or null if no managed block holds a chunk.
  Block* victim() const;

  // Returns the charge of an allocation: `bytes` rounded up, below 1 MiB to 64 KiB, and from 1 MiB
  // on to 2 MiB chunks.
  static std::size_t charge_of(std::size_t bytes);

  // Returns the memory of a context: 1/64 of the capacity, rounded up to 64 KiB, and at most 512
  // MiB, as on large devices.
  static std::size_t context_bytes(std::size_t capacity_bytes);

 private:
  std::size_t used_bytes() const { return unevictable_bytes() + managed_bytes(); }
  void note_peak();
  std::list<Block*>& list_of(ChunkList list) { return lists_[static_cast<std::size_t>(list)]; }

  std::size_t device_;
  std::size_t capacity_bytes_;
  std::size_t charged_bytes_ = 0;
  std::size_t managed_bytes_ = 0;  // held by blocks
  bool has_context_ = false;
  std::size_t peak_bytes_ = 0;
  std::array<std::list<Block*>, 3> lists_;
};

}  // namespace uvmsim
