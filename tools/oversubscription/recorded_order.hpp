// The order in which the kernels of a recording use 2 MiB blocks, and which pages are live in
// between. A page is live from its first use after an allocation until its last use before it is
// freed or allocated again. Computed once from a recording, by a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/engine/page_mask.hpp"
#include "sim/engine/page_range.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/recording.hpp"

#include "tools/oversubscription/use_order.hpp"

namespace uvm::oversubscription {

inline uvmsim::PageRange pages_of(std::uint32_t block) {
  return {block * uvmsim::kPagesPerBlock, (block + 1) * uvmsim::kPagesPerBlock};
}

// Returns the address of a page in the recorded program.
std::uintptr_t address_of(const uvmsim::replay::Recording& recording, std::size_t page);

// True for kernels and copies.
bool is_kernel(const uvmsim::replay::Event& event);

struct RecordedOrder {
  struct LivePages {
    std::size_t kernel = 0;
    uvmsim::PageMask pages;  // live pages before that kernel
  };
  plan::UseOrder order;
  // By event: its index among the kernels and copies, or the index of the next kernel or copy.
  std::vector<std::size_t> kernel_of_event;
  std::vector<std::vector<LivePages>> live;   // by block, for each of its uses
  std::vector<uvmsim::PageMask> live_at_end;  // by block

  // Returns the pages of the block that this kernel or a later one needs.
  const uvmsim::PageMask& live_before(std::uint32_t block, std::size_t kernel) const;
};

RecordedOrder order_of(const uvmsim::replay::Recording& recording);

// Returns the blocks that a kernel or a copy uses, in ascending order.
std::vector<std::uint32_t> blocks_of(const uvmsim::replay::Recording& recording,
                                     const uvmsim::replay::Event& event);

// Returns live bytes after each event, of allocations that kernels use after the first mark.
std::vector<std::uint64_t> live_bytes(const uvmsim::replay::Recording& recording);

// After the first mark: the most live bytes of allocations that kernels use, and the most blocks
// that one kernel uses.
struct Footprint {
  std::uint64_t peak_bytes = 0;
  std::size_t largest_kernel_blocks = 0;
};
Footprint footprint_of(const uvmsim::replay::Recording& recording, const RecordedOrder& order);

}  // namespace uvm::oversubscription
