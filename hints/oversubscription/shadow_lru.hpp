// Counts what `lru`, which evicts the least recently used page, would move for the same kernels.
// Moves nothing. PlanJudge compares the plan with these counts.
//
// Not thread-safe, like LivePlan. Calls no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class ShadowLru {
 public:
  ShadowLru(const UseLog& log, std::size_t chunks) : log_(log), chunks_(chunks) {}

  void set_chunks(std::size_t chunks) { chunks_ = chunks; }
  // Records that the kernel uses the page. Call this for pages that the kernel reads first.
  void use(Page& page, KernelNumber kernel);
  void end_kernel(KernelNumber kernel);
  // Records that the page is needed for a block that was not written yet.
  void bring_new(Page& page, KernelNumber kernel);
  // Records that the page contains no block any more.
  void emptied(Page& page);

  // Returns the total number of pages that are copied in either direction, or used on the host by
  // one kernel.
  std::uint64_t moved_pages() const { return moved_pages_; }

 private:
  bool make_room(KernelNumber kernel);
  void bring(Page& page);

  const UseLog& log_;
  std::size_t chunks_;
  std::list<Page*> here_;    // the page that is evicted first is in front
  std::vector<Page*> used_;  // pages that the kernel uses
  std::uint64_t moved_pages_ = 0;
};

}  // namespace uvm::live
