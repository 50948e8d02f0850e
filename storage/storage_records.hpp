// What an allocation is: one RealStorage, and an IndirectStorage for each use of it (RFC-0023,
// "Empty Tensors"). The real record keeps what freeing needs, whatever has happened to the bytes
// since: the address and the place whose context owns the memory. An indirect record says where and
// on which stream the memory is used now. Every allocation starts with a pair, held inside the
// block's own metadata, so pairing costs no allocation; a move adds another indirect record, which
// names the real one. The memory is released when the last indirect record goes.
//
// The pair of a block that only one thread has is that thread's; what other records are attached to
// it is guarded by the lock of the allocator that owns them. The pair is laid out for size: there
// is one for every live block, and with what the allocator adds it fills a line of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/place.hpp>
#include <uvmalloc/storage/pages.hpp>

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
  // What the functions below tell, in one word that is read and written whole. Of bit-fields a
  // compiler writes the bytes that it must; who reads the word soon after then waits for the cache,
  // some 12 cycles each time.
  std::uint64_t word = kHeld | bits_of(Place::nowhere());

  IndirectStorage() = default;
  IndirectStorage(std::size_t size_bytes, Place location)
      : word(size_bytes | kHeld | bits_of(location)) {}

  std::size_t size_bytes() const { return word & kSizeMask; }  // as asked for
  // Whether somebody will release it; else it goes with the real record.
  bool held() const { return (word & kHeld) != 0; }
  Place location() const {  // where this use wants the bytes
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
  IndirectStorage* indirect = nullptr;  // newest first; the last one is the allocation's own
  std::uint32_t granules = 0;           // its size as rounded
  std::uint16_t references = 0;         // indirect records
  Place origin;                         // whose context frees it

  std::size_t size_bytes() const { return std::size_t{granules} * kGranule; }
  // A multiple of kGranule, up to kMostSizeBytes.
  void resize(std::size_t size_bytes) {
    granules = static_cast<std::uint32_t>(size_bytes / kGranule);
  }

  bool alive() const { return references != 0; }

  // Puts `record` in front. The caller has set what it says, and has seen to it that there are less
  // than kMostReferences.
  void attach(IndirectStorage* record) {
    record->next = indirect;
    indirect = record;
    ++references;
  }

  // True when that was the last one. `record` must be attached.
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

// The record of a move.
struct MovedStorage : IndirectStorage {
  RealStorage* real = nullptr;    // nullptr: the bytes are gone
  StreamHandle stream = nullptr;  // the stream that uses them, for a device location
};

}  // namespace uvm
