#include <uvmalloc/hints/live/read_only_pages.hpp>

#include <algorithm>

namespace uvm::live {

template <class Ask>
bool ReadOnlyPages::all_uses(const Page& page, Ask ask) const {
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

bool ReadOnlyPages::contains(const Page& page) const {
  return all_uses(page, [](const LoggedUse& use) { return (use.access & kWrites) == 0; });
}

bool ReadOnlyPages::is_read_once(const Page& page) const {
  return all_uses(page, [this](const LoggedUse& use) { return is_read_once(use); });
}

// A step before, more or less: kernels may have been added or left out.
bool ReadOnlyPages::is_read_once(const LoggedUse& use) const {
  if (use.access != (kReads | kOnce)) return false;
  const std::uint64_t step = learner_.step_kernels();
  if (!log_.has_use(use.previous) || step == 0) return true;
  return use.kernel - log_.use(use.previous).kernel + StepLearner::kAgeSlack >= step;
}

}  // namespace uvm::live
