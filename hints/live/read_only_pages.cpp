#include <uvmalloc/hints/live/read_only_pages.hpp>

#include <algorithm>

namespace uvm::live {

bool ReadOnlyPages::contains(const Page& page) const {
  const std::uint64_t step = learner_.step_kernels();
  const auto blocks = log_.blocks_in_page(page.number);
  if (step == 0 || log_.newest() <= step || blocks.empty()) return false;
  const KernelNumber begin = log_.newest() - step;
  return std::ranges::all_of(blocks, [&](RecordId id) {
    const BlockRecord& record = log_.record(id);
    if (record.born >= begin) return false;
    UseNumber use = record.last_use;
    for (; log_.has_use(use) && log_.use(use).kernel >= begin; use = log_.use(use).previous) {
      if ((log_.use(use).access & kWrites) != 0) return false;
    }
    return true;
  });
}

}  // namespace uvm::live
