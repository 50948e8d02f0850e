#include "hints/oversubscription/page_uses.hpp"

#include <algorithm>

namespace uvm::live {

// Returns the latest use of the page at or before `number`. Skips uses of other parts of the block,
// but does not search uses that are older than two steps.
UseNumber PageUses::latest(UseNumber number, const Page& page) const {
  const KernelNumber newest = log_.newest();
  while (log_.has_use(number) && !log_.covers(log_.use(number), page.number)) {
    if (log_.use(number).kernel + 2 * learner_.step_kernels() < newest) return kNoUse;
    number = log_.use(number).previous;
  }
  return number;
}

template <class Ask>
bool PageUses::all_uses(const Page& page, Ask ask) const {
  const std::uint64_t step = learner_.step_kernels();
  const auto blocks = log_.blocks_in_page(page.number);
  if (step == 0 || log_.newest() <= step || blocks.empty()) return false;
  const KernelNumber begin = log_.newest() - step;
  return std::ranges::all_of(blocks, [&](RecordId id) {
    const BlockRecord& record = log_.record(id);
    if (record.born >= begin) return false;
    UseNumber number = latest(record.last_use, page);
    while (log_.has_use(number) && log_.use(number).kernel >= begin) {
      const UseNumber before = latest(log_.use(number).previous, page);
      if (!ask(log_.use(number), before)) return false;
      number = before;
    }
    return true;
  });
}

bool PageUses::are_reads(const Page& page) const {
  return all_uses(page,
                  [](const LoggedUse& use, UseNumber) { return (use.access & kWrites) == 0; });
}

// The previous use was about one step before, because kernels may have been added or left out.
bool PageUses::are_once_each(const Page& page) const {
  return all_uses(page, [this](const LoggedUse& use, UseNumber before) {
    if ((use.access & kOnce) == 0) return false;
    return !log_.has_use(before) ||
           use.kernel - log_.use(before).kernel + learner_.slack() >= learner_.step_kernels();
  });
}

}  // namespace uvm::live
