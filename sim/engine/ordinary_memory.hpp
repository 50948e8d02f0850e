// The program's own memory, on a machine whose devices can access this memory. One record for the
// whole address space stores the advice on its pages. The machine does not see when the program
// maps or unmaps memory, so it queries Linux each time. Host and devices use the same addresses.
//
// Owns the record; guarded by the machine's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/engine/allocation.hpp"
#include "sim/engine/page_mask.hpp"

namespace uvmsim {

class OrdinaryMemory {
 public:
  OrdinaryMemory();
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;

  AllocationRecord& record() { return record_; }

  // Returns whether each page of the range is mapped, with any access.
  static bool is_mapped(std::uintptr_t address, std::size_t size_bytes);

  // Returns the mapped pages of the 2 MiB block at `address`.
  static PageMask mapped_pages(std::uintptr_t address);

  // Drops the records of advice and prefetches of unmapped pages.
  void forget_unmapped();

 private:
  AllocationRecord record_;
};

}  // namespace uvmsim
