// The records of an allocation: one RealStorage, and an IndirectStorage for each use (RFC-0023,
// "Empty Tensors"). The real record contains what a free needs: the address, and the place whose
// context owns the memory. An indirect record contains the place where the memory is used. Every
// allocation starts with a pair inside the block's own record, which costs no allocation. A move
// adds an indirect record, which refers to the real one. The last indirect record frees the memory.
//
// The pair of a block belongs to the thread that owns the block. The allocator's lock guards other
// attached records. The pair is small, because every live block has one: the pair and the
// allocator's own data fill one cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/place.hpp>
#include "storage/pages.hpp"

namespace uvm {

struct IndirectStorage {
  static constexpr unsigned kSizeBits = 47;
  static constexpr std::uint64_t kHeld = std::uint64_t{1} << kSizeBits;
  static constexpr std::uint64_t kSizeMask = kHeld - 1;
  static constexpr unsigned kKindBit = kSizeBits + 1;
  static constexpr unsigned kIndexBit = kKindBit + 8;

  static constexpr std::uint64_t bits_of(Place place) {
    return std::uint64_t{static_cast<std::uint8_t>(place.kind)} << kKindBit |
           std::uint64_t{static_cast<std::uint8_t>(place.index)} << kIndexBit;
  }

  IndirectStorage* next = nullptr;
  // Size, place and the flag `held`, in one word that is read and written as a whole. For
  // bit-fields a compiler would write single bytes, and a read of the word soon afterwards would
  // wait about 12 cycles for the store buffer.
  std::uint64_t word = kHeld | bits_of(Place::nowhere());

  IndirectStorage() = default;
  IndirectStorage(std::size_t size_bytes, Place location)
      : word(size_bytes | kHeld | bits_of(location)) {}

  std::size_t size_bytes() const { return word & kSizeMask; }  // the requested size
  // Returns whether an owner releases this record. If not, this record is freed with the real
  // record.
  bool held() const { return (word & kHeld) != 0; }
  Place location() const {  // the place where this use wants the memory
    return {static_cast<PlaceKind>(word >> kKindBit & 0xff),
            static_cast<std::int8_t>(word >> kIndexBit)};
  }

  void resize(std::size_t size_bytes) { word = (word & ~kSizeMask) | size_bytes; }
  void set_held(bool held) { word = (word & ~kHeld) | (held ? kHeld : 0); }
  void move_to(Place location) { word = (word & (kHeld | kSizeMask)) | bits_of(location); }
};

struct RealStorage {
  static constexpr std::size_t kMostSizeBytes = (std::size_t{1} << 32) * kGranule - kGranule;
  static constexpr std::uint16_t kMostReferences = std::numeric_limits<std::uint16_t>::max();

  char* address = nullptr;
  IndirectStorage* indirect = nullptr;  // newest first; the last is the allocation's own record
  std::uint32_t granules = 0;           // the size, rounded up
  std::uint16_t references = 0;         // number of indirect records
  Place origin;                         // the memory is freed in the context of this place

  std::size_t size_bytes() const { return std::size_t{granules} * kGranule; }
  // `size_bytes` is a multiple of kGranule, at most kMostSizeBytes.
  void resize(std::size_t size_bytes) {
    granules = static_cast<std::uint32_t>(size_bytes / kGranule);
  }

  bool alive() const { return references != 0; }

  // Inserts `record`, already filled in, at the front. `references` must be below kMostReferences.
  void attach(IndirectStorage* record) {
    record->next = indirect;
    indirect = record;
    ++references;
  }

  // Removes `record`, which must be attached. Returns true if it was the last record.
  bool detach(IndirectStorage* record) {
    IndirectStorage** link = &indirect;
    while (*link != record) link = &(*link)->next;
    *link = record->next;
    record->next = nullptr;
    return --references == 0;
  }
};
static_assert(sizeof(RealStorage) == 24 && sizeof(IndirectStorage) == 16 &&
              RealStorage::kMostSizeBytes >> IndirectStorage::kSizeBits == 0);

// The indirect record that a move adds.
struct MovedStorage : IndirectStorage {
  RealStorage* real = nullptr;    // nullptr: the memory was freed
  StreamHandle stream = nullptr;  // the stream that uses the memory, if the location is a device
};

}  // namespace uvm
