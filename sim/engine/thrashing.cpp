#include "sim/engine/thrashing.hpp"

namespace uvmsim {
namespace {

template <class Visit>
void each_page(const PageMask& pages, Visit visit) {
  for (std::size_t page = pages._Find_first(); page < kPagesPerBlock; page = pages._Find_next(page))
    visit(page);
}

}  // namespace

// If a block had no migration for an epoch, drops its record, at most `most_resets` times.
void Thrashing::reset_if_quiet(Record& record, std::uint64_t now_ns) const {
  if (record.pages == nullptr || record.resets >= rules_.most_resets) return;
  if (now_ns < record.last_ns + rules_.epoch_lapses * rules_.lapse_ns) return;
  record.pages = nullptr;
  record.moved.reset();
  ++record.resets;
}

void Thrashing::count_migration(Page& page, std::uint64_t now_ns) const {
  const bool is_soon = page.migrations != 0 && now_ns <= page.last_ns + rules_.lapse_ns;
  // A page counts as thrashing until its block is reset, because a throttled processor takes the
  // page again only after more than a lapse.
  if (!is_soon && page.migrations < rules_.threshold) page.migrations = 0;
  ++page.migrations;
  page.last_ns = now_ns;
}

void Thrashing::note_migration(std::size_t block, const PageMask& pages, std::uint64_t now_ns) {
  if (!rules_.detects || pages.none()) return;
  Record& record = records_[block];
  reset_if_quiet(record, now_ns);
  if (record.pages == nullptr && (record.moved & pages).any() &&
      now_ns <= record.last_ns + rules_.lapse_ns) {
    record.pages = std::make_unique<std::array<Page, kPagesPerBlock>>();
    each_page(record.moved,
              [&](std::size_t page) { count_migration((*record.pages)[page], record.last_ns); });
  }
  if (record.pages != nullptr) {
    each_page(pages, [&](std::size_t page) { count_migration((*record.pages)[page], now_ns); });
  }
  record.moved = pages;
  record.last_ns = now_ns;
}

Thrashing::Answer Thrashing::answer(std::size_t block, const PageMask& pages,
                                    std::uint64_t now_ns) {
  Answer answer;
  const auto found = records_.find(block);
  if (!rules_.detects || found == records_.end() || found->second.pages == nullptr) return answer;
  reset_if_quiet(found->second, now_ns);
  if (found->second.pages == nullptr) return answer;
  each_page(pages, [&](std::size_t index) {
    Page& page = (*found->second.pages)[index];
    if (page.migrations < rules_.threshold) return;
    if (page.pinned_until_ns != 0 && now_ns >= page.pinned_until_ns) {
      page = {};
      return;
    }
    if (page.pinned_until_ns == 0 && ++page.throttles > rules_.throttles)
      page.pinned_until_ns = now_ns + rules_.pin_lapses * rules_.lapse_ns;
    (page.pinned_until_ns != 0 ? answer.pinned : answer.throttled).set(index);
  });
  return answer;
}

void Thrashing::forget(std::size_t block, const PageMask& pages) {
  const auto found = records_.find(block);
  if (!rules_.detects || found == records_.end()) return;
  found->second.moved &= ~pages;
  if (found->second.pages == nullptr) return;
  each_page(pages, [&](std::size_t page) { (*found->second.pages)[page] = {}; });
}

}  // namespace uvmsim
