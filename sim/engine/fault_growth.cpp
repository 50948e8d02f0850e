#include "sim/engine/fault_growth.hpp"

namespace uvmsim {
namespace {

PageMask grown_to_groups(const PageMask& faulted, std::size_t group_pages) {
  PageMask grown;
  for (std::size_t page = faulted._Find_first(); page < kPagesPerBlock;
       page = faulted._Find_next(page)) {
    if (grown[page]) continue;
    grown |= page_mask(page / group_pages * group_pages, group_pages);
  }
  return grown;
}

// Returns the largest dense subtree around the group at `first`.
PageMask dense_subtree(std::size_t first, std::size_t group_pages, const PageMask& counted,
                       const PageMask& tree, unsigned density_percent) {
  PageMask largest;
  for (std::size_t size = group_pages; size <= kPagesPerBlock; size *= 2) {
    const PageMask subtree = page_mask(first / size * size, size) & tree;
    if ((counted & subtree).count() * 100 > subtree.count() * density_percent) largest = subtree;
  }
  return largest;
}

}  // namespace

PageMask first_pages(const PageMask& pages, std::size_t count) {
  if (count == 0 || pages.count() <= count) return pages;
  PageMask first;
  std::size_t page = pages._Find_first();
  for (std::size_t i = 0; i < count; ++i, page = pages._Find_next(page)) first.set(page);
  return first;
}

PageMask grow_faults(const PageMask& faulted, const PageMask& resident, const PageMask& eligible,
                     const FaultRules& rules) {
  PageMask grown = faulted;
  if (rules.granularity_pages > 1)
    grown |= grown_to_groups(faulted, rules.granularity_pages) & eligible;
  if (rules.density_percent == 0) return grown;
  const PageMask tree = eligible | resident | faulted;
  const PageMask counted = resident | grown;
  PageMask result = grown;
  for (std::size_t group = 0; group < kPagesPerBlock; group += rules.granularity_pages) {
    if ((faulted & page_mask(group, rules.granularity_pages)).none()) continue;
    if ((tree & ~result).none()) break;
    result |= dense_subtree(group, rules.granularity_pages, counted, tree, rules.density_percent);
  }
  return result & (eligible | faulted);
}

}  // namespace uvmsim
