#include "allocator/placement/residency_check.hpp"

#include <algorithm>
#include <utility>

#include "hints/oversubscription/policy.hpp"

namespace uvm {

ResidencyCheck::ResidencyCheck(Machine& machine, HeapState& state, int device, Compare compare)
    : machine_(machine), state_(state), device_(device), compare_(std::move(compare)) {}

void ResidencyCheck::compare_some() {
  if (!machine_.device(device_).capabilities.finds_pages) return;
  std::size_t compared = 0;
  for (int call = 0; call < policy::kCompareCalls && compared < policy::kComparedPages; ++call) {
    Part part = next_part();
    while (part.begin != nullptr && part.pages == 0) part = next_part();
    if (part.begin == nullptr) return end_round();
    compare_part(part);
    compared += part.pages;
  }
}

// Returns the next part of the program's touched memory, in the order of addresses. If the part has
// no address, the round is complete.
ResidencyCheck::Part ResidencyCheck::next_part() {
  const HeapGuard heap(state_);
  const Span* next = nullptr;
  for (const auto& span : heap->spans.spans()) {
    const bool is_left = compared_until_ < span->base + span->size_bytes;
    if (is_left && (next == nullptr || span->base < next->base)) next = span.get();
  }
  if (next == nullptr) {
    compared_until_ = nullptr;
    return {};
  }
  const auto& touched = next->touched;
  const std::size_t from =
      compared_until_ < next->base
          ? 0
          : static_cast<std::size_t>(compared_until_ - next->base) / kPageBytes;
  const auto begin =
      std::find(touched.begin() + static_cast<std::ptrdiff_t>(from), touched.end(), true);
  if (begin == touched.end()) {
    compared_until_ = next->base + next->size_bytes;
    return {next->base, 0};
  }
  const auto left = static_cast<std::size_t>(touched.end() - begin);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, policy::kComparedPages));
  Part part;
  part.begin = next->base + (begin - touched.begin()) * static_cast<std::ptrdiff_t>(kPageBytes);
  part.pages = static_cast<std::size_t>(end - begin);
  while (!*(begin + static_cast<std::ptrdiff_t>(part.pages) - 1)) --part.pages;
  compared_until_ = part.begin + part.pages * kPageBytes;
  return part;
}

void ResidencyCheck::compare_part(const Part& part) {
  std::vector<Place> places(part.pages);
  // The span may have been freed meanwhile. Then the driver refuses the range.
  const RuntimeStatus status = machine_.runtime.find_pages(
      device_, part.begin, part.pages * kPageBytes, kPageBytes, places.data());
  if (!status.ok()) return;
  std::vector<bool> are_here(part.pages);
  std::transform(places.begin(), places.end(), are_here.begin(),
                 [this](Place place) { return place == Place::device(device_); });
  const PageNumber first = page_of(address_of(part.begin));
  const Result result = compare_(first, are_here);
  expected_ += result.expected;
  found_ += result.found;
  const HeapGuard heap(state_);
  for (const PageNumber page : result.corrected) {
    char* const address = start_of_page(page);
    if (state_.is_ours(address)) heap->ledger.set(address, kPageBytes, places[page - first]);
  }
}

void ResidencyCheck::end_round() {
  const std::size_t found = std::exchange(found_, 0);
  const std::size_t expected = std::exchange(expected_, 0);
  {
    const HeapGuard heap(state_);
    heap->statistics.figures().believed_bytes = expected * kPageBytes;
    heap->statistics.figures().real_bytes = found * kPageBytes;
  }
  if (found + expected / policy::kMissingParts < expected) {
    taken_ += expected - found;
    rounds_to_try_ = std::min(2 * rounds_to_try_, policy::kMostRoundsToTry);
    good_rounds_ = 0;
  } else if (taken_ == 0) {
    rounds_to_try_ = 1;
  } else if (++good_rounds_ >= rounds_to_try_) {
    taken_ -= std::max<std::size_t>(1, taken_ / 4);
    good_rounds_ = 0;
  }
}

}  // namespace uvm
