// Which pages come along with faulted ones. A pure function.
#pragma once

#include "sim/engine/machine_rules.hpp"
#include "sim/engine/page_mask.hpp"

namespace uvmsim {

// The pages of a block to make resident where `faulted` pages are. Each faulted page brings its
// aligned group of `granularity_pages`. Then the tree over the block's groups is walked up from
// each faulted group: the largest subtree with more than `density_percent` of its pages resident or
// faulted comes whole. `eligible` pages are those of the range that may come; the others neither
// come nor count in a subtree's size. Rule of the modelled driver: uvm_perf_prefetch.c,
// compute_prefetch_region.
PageMask grow_faults(const PageMask& faulted, const PageMask& resident, const PageMask& eligible,
                     const FaultRules& rules);

// The lowest `count` pages of the mask; all of them where `count` is 0.
PageMask first_pages(const PageMask& pages, std::size_t count);

}  // namespace uvmsim
