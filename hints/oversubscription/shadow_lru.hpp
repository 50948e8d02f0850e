// Counts what `lru` would move for the same kernels, without a move: the page that was used longest
// ago leaves. PlanJudge compares the plan with it.
//
// Not thread-safe, as LivePlan. Knows no driver.
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
  // The kernel uses the page. Pages that it reads come first.
  void use(Page& page, KernelNumber kernel);
  void end_kernel(KernelNumber kernel);
  // A block that nobody has written to needs the page.
  void bring_new(Page& page, KernelNumber kernel);
  // No block is in the page any more.
  void emptied(Page& page);

  // A total of pages that are copied either way, or used on the host by one kernel.
  std::uint64_t moved_pages() const { return moved_pages_; }

 private:
  bool make_room(KernelNumber kernel);
  void bring(Page& page);

  const UseLog& log_;
  std::size_t chunks_;
  std::list<Page*> here_;    // the page that leaves first is in front
  std::vector<Page*> used_;  // by the kernel
  std::uint64_t moved_pages_ = 0;
};

}  // namespace uvm::live
