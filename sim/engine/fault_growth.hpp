// Selects the pages that migrate together with faulted ones. Pure functions.
#pragma once

#include "sim/engine/machine_rules.hpp"
#include "sim/engine/page_mask.hpp"

namespace uvmsim {

// Returns the pages of a block that migrate for `faulted` pages. Each faulted page adds its aligned
// group of `granularity_pages`. Then, in the tree over the block's groups, each faulted group adds
// the largest subtree around it in which more than `density_percent` of the pages are resident or
// faulted. Pages that are not `eligible` do not migrate and do not count in a subtree's size. Rule
// of the modelled driver: uvm_perf_prefetch.c, compute_prefetch_region.
PageMask grow_faults(const PageMask& faulted, const PageMask& resident, const PageMask& eligible,
                     const FaultRules& rules);

// Returns the lowest `count` pages of the mask; all pages if `count` is 0.
PageMask first_pages(const PageMask& pages, std::size_t count);

}  // namespace uvmsim
