#include <uvmalloc/allocator/peak_book.hpp>

#include <algorithm>

namespace uvm {
namespace {

Amounts larger(const Amounts& left, const Amounts& right) {
  return {std::max(left.blocks, right.blocks), std::max(left.bytes, right.bytes),
          std::max(left.requested_bytes, right.requested_bytes)};
}

Amounts part(const Amounts& of, std::int64_t parts) {
  return {of.blocks / parts, of.bytes / parts, of.requested_bytes / parts};
}

}  // namespace

void PeakBook::add_up(std::size_t place, std::span<Tally* const> tallies, const Tally& ended,
                      const Tally* asking) {
  const auto count = static_cast<std::int64_t>(tallies.size());
  for (std::size_t of = 0; of < kSums; ++of) {
    Amounts sum = ended.live(of);
    for (const Tally* tally : tallies) sum += tally->live(of);
    Amounts& peak = places_[place].peaks[of];
    peak = larger(peak, sum);
    const Amounts room = peak - sum;
    for (Tally* tally : tallies) {
      Amounts share = count == 1 ? room : part(room, 2 * count);
      if (tally == asking && count > 1) share += part(room, 2);
      tally->set_limit(of, tally->live(of) + share);
    }
  }
}

void PeakBook::reset_totals(std::size_t place, const Tally& sum) {
  for (std::size_t of = 0; of < kSums; ++of) {
    places_[place].increased_before[of] = sum.total(of);
    places_[place].decreased_before[of] = sum.total(of) - sum.live(of);
  }
}

Amounts PeakBook::increased(std::size_t place, std::size_t of, const Tally& sum) const {
  return sum.total(of) - places_[place].increased_before[of];
}

Amounts PeakBook::decreased(std::size_t place, std::size_t of, const Tally& sum) const {
  return sum.total(of) - sum.live(of) - places_[place].decreased_before[of];
}

}  // namespace uvm
