// One piece of memory that the machine knows: managed, device or pinned memory, or the program's
// own. The program's own memory is either registered as pinned, or ordinary memory that the devices
// can access. A record can be found by any address in its memory. Guarded by the machine's mutex;
// copies that callers get are snapshots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/engine/location.hpp"
#include "sim/engine/policy.hpp"
#include "sim/engine/span_map.hpp"

namespace uvmsim {

enum class MemoryKind { kManaged, kDevice, kPinned, kRegistered, kOrdinary };

struct Allocation {
  MemoryKind kind;
  std::uintptr_t address;
  std::size_t size_bytes;
  int device;                    // the current device at the allocation
  unsigned flags;                // as given by the caller; the engine does not interpret them
  std::uint64_t id;              // never reused
  std::size_t charge_bytes = 0;  // device memory only
  void* pool = nullptr;          // the pool that the memory was taken from, if any
  int context = -1;              // the memory is freed when this context ends; -1: no context
  bool imported = false;         // device memory that another process allocated
  std::uint64_t mapped_for = 0;  // bit mask of the devices for which the program has mapped it

  bool is_host() const { return kind == MemoryKind::kPinned || kind == MemoryKind::kRegistered; }
  // Returns whether another process may open this memory.
  bool is_shareable() const {
    return kind == MemoryKind::kDevice && !imported && mapped_for == 0 && pool == nullptr;
  }
};

// The current advice and the last requested prefetch of each page, for memory that can migrate.
struct Placement {
  explicit Placement(std::size_t pages) : policy(pages), last_prefetch(pages) {}

  struct Target {
    int location = kNoLocation;
    friend bool operator==(const Target&, const Target&) = default;
  };
  SpanMap<Policy> policy;
  SpanMap<Target> last_prefetch;
};

struct AllocationRecord {
  Allocation allocation;
  std::unique_ptr<Placement> placement;  // managed and ordinary memory only

  // The modelled driver does not read-duplicate ordinary memory.
  Policy in_force(Policy policy) const {
    if (allocation.kind == MemoryKind::kOrdinary) policy.read_mostly = false;
    return policy;
  }
};

class AllocationTable {
 public:
  AllocationRecord& add(AllocationRecord record);
  void remove(std::uintptr_t address) { records_.erase(address); }

  // Returns the record of the memory that holds `address`, or null.
  AllocationRecord* find(std::uintptr_t address);
  const AllocationRecord* find(std::uintptr_t address) const;

  // Returns the record of the memory that starts at `address`, or null.
  const AllocationRecord* find_start(std::uintptr_t address) const;

  // Returns the records for which `wanted` returns true.
  template <class Wanted>
  std::vector<Allocation> all_where(Wanted wanted) const {
    std::vector<Allocation> found;
    for (const auto& [address, record] : records_) {
      if (wanted(record.allocation)) found.push_back(record.allocation);
    }
    return found;
  }

  // Returns whether any record's memory overlaps [address, address + size_bytes).
  bool overlaps(std::uintptr_t address, std::size_t size_bytes) const;

 private:
  std::map<std::uintptr_t, AllocationRecord> records_;
};

}  // namespace uvmsim
