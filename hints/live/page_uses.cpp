#include "hints/live/page_uses.hpp"

#include <algorithm>

namespace uvm::live {

template <class Ask>
bool PageUses::all_uses(const Page& page, Ask ask) const {
  const std::uint64_t step = learner_.step_kernels();
  const auto blocks = log_.blocks_in_page(page.number);
  if (step == 0 || log_.newest() <= step || blocks.empty()) return false;
  const KernelNumber begin = log_.newest() - step;
  return std::ranges::all_of(blocks, [&](RecordId id) {
    const BlockRecord& record = log_.record(id);
    if (record.born >= begin) return false;
    UseNumber use = record.last_use;
    for (; log_.has_use(use) && log_.use(use).kernel >= begin; use = log_.use(use).previous) {
      if (!ask(log_.use(use))) return false;
    }
    return true;
  });
}

bool PageUses::are_reads(const Page& page) const {
  return all_uses(page, [](const LoggedUse& use) { return (use.access & kWrites) == 0; });
}

// The use before was a step before, more or less: kernels may have been added or left out.
bool PageUses::are_once_each(const Page& page) const {
  return all_uses(page, [this](const LoggedUse& use) {
    if ((use.access & kOnce) == 0) return false;
    return !log_.has_use(use.previous) ||
           use.kernel - log_.use(use.previous).kernel + learner_.slack() >= learner_.step_kernels();
  });
}

}  // namespace uvm::live
