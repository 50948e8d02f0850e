// What an allocation is: one RealStorage, and an IndirectStorage for each use of it (RFC-0023,
// "Empty Tensors"). The real record keeps what freeing needs, whatever has happened to the bytes
// since: the address and the place whose context owns the memory. An indirect record says where and
// on which stream the memory is used now. Every allocation starts with a pair, held inside the
// block's own metadata, so pairing costs no allocation; a move adds another indirect record to the
// same real one. The memory is released when the last indirect record goes.
//
// The pair of a block that only one thread has is that thread's; what other records are attached to
// it is guarded by the lock of the allocator that owns them. Both records are laid out for size:
// there is a pair for every live block.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/place.hpp>

namespace uvm {

struct RealStorage;

struct IndirectStorage {
  std::size_t size_bytes = 0;  // as asked for
  IndirectStorage* next = nullptr;
  RealStorage* real = nullptr;
  std::size_t offset_bytes = 0;   // into the real storage
  StreamHandle stream = nullptr;  // the stream that uses them, for a device location
  Place location;                 // where this use wants the bytes
  bool held = true;               // somebody will release it; else it goes with the real record
};

struct RealStorage {
  char* address = nullptr;
  std::size_t size_bytes = 0;           // as rounded
  IndirectStorage* indirect = nullptr;  // newest first; the last one is the allocation's own
  std::uint32_t references = 0;         // indirect records
  Place origin;                         // whose context frees it

  bool alive() const { return references != 0; }

  // Puts `record` in front. The caller has set its location, stream and range.
  void attach(IndirectStorage* record) {
    record->real = this;
    record->next = indirect;
    indirect = record;
    ++references;
  }

  // True when that was the last one. `record` must be attached.
  bool detach(IndirectStorage* record) {
    IndirectStorage** link = &indirect;
    while (*link != record) link = &(*link)->next;
    *link = record->next;
    record->real = nullptr;
    record->next = nullptr;
    return --references == 0;
  }
};

}  // namespace uvm
