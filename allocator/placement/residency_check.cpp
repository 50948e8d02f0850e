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
  lost_ += result.lost;
  const HeapGuard heap(state_);
  const auto correct = [&](PageNumber page) {
    char* const address = start_of_page(page);
    if (state_.is_ours(address)) heap->ledger.set(address, kPageBytes, places[page - first]);
  };
  for (const PageNumber page : result.corrected) correct(page);
  // The driver may evict pages that the program no longer uses. A page at no place by the ledger
  // may be discarded.
  for (const PageNumber page : result.unknown) {
    const auto known_at = [&](Place place) {
      return heap->ledger.bytes_at(start_of_page(page), kPageBytes, place) != 0;
    };
    if (!known_at(Place::nowhere()) && !known_at(places[page - first])) correct(page);
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
  // A few of the pages that are not found may be in flight.
  const std::size_t missing = expected - std::min(expected, found);
  const std::size_t still_lost = std::exchange(lost_, 0);
  const std::size_t lost = missing > expected / policy::kMissingParts ? missing : still_lost;
  if (lost != 0 && !has_room_for(lost)) {
    taken_ += lost;
    rounds_to_try_ = std::min(2 * rounds_to_try_, policy::kMostRoundsToTry);
    pages_to_try_ = 1;
    good_rounds_ = 0;
  } else if (taken_ == 0) {
    rounds_to_try_ = 1;
    pages_to_try_ = 1;
  } else if (++good_rounds_ >= rounds_to_try_) {
    taken_ -= std::min(taken_, pages_to_try_);
    pages_to_try_ *= 2;
    good_rounds_ = 0;
  }
}

bool ResidencyCheck::has_room_for(std::size_t pages) const {
  MemoryFigures figures;
  return machine_.runtime.memory_figures(device_, &figures).ok() &&
         figures.free_bytes >= pages * kPageBytes;
}

}  // namespace uvm
