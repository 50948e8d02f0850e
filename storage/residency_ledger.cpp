#include "storage/residency_ledger.hpp"

#include <utility>

namespace uvm {
namespace {

constexpr auto kMinusOne = static_cast<std::size_t>(-1);

std::size_t page_index(std::uintptr_t span, std::uintptr_t address) {
  return (address - span) >> kPageShift;
}

}  // namespace

void ResidencyLedger::add_span(const void* address, std::size_t size_bytes) {
  std::vector<Page> pages(size_bytes >> kPageShift);
  const std::size_t count = pages.size();
  spans_[address_of(address)] = {size_bytes, std::move(pages)};
  pages_at_[index_of(Place::nowhere())] += count;
}

void ResidencyLedger::remove_span(const void* address) {
  auto span = spans_.find(address_of(address));
  if (span == spans_.end()) return;
  for (const Page& page : span->second.pages) count(page, kMinusOne);
  spans_.erase(span);
}

std::map<std::uintptr_t, ResidencyLedger::Span>::const_iterator ResidencyLedger::span_of(
    std::uintptr_t page_address) const {
  auto span = spans_.upper_bound(page_address);
  if (span == spans_.begin()) return spans_.end();
  --span;
  return page_address < span->first + span->second.size_bytes ? span : spans_.end();
}

template <class Change>
void ResidencyLedger::change(const void* address, std::size_t size_bytes, Change change) {
  std::uintptr_t begin = round_up(address_of(address), kPageBytes);
  std::uintptr_t end = (address_of(address) + size_bytes) & ~(kPageBytes - 1);
  if (begin >= end) return;
  auto found = span_of(begin);
  if (found == spans_.end()) return;
  Span& span = spans_.at(found->first);
  for (std::uintptr_t page = begin; page < end; page += kPageBytes) {
    Page& entry = span.pages.at(page_index(found->first, page));
    count(entry, kMinusOne);
    change(&entry);
    count(entry, 1);
  }
}

void ResidencyLedger::set(const void* address, std::size_t size_bytes, Place place) {
  change(address, size_bytes, [&](Page* page) {
    page->earlier.add(page->place);
    page->place = place;
    page->is_discarded = false;
  });
}

void ResidencyLedger::discard(const void* address, std::size_t size_bytes) {
  change(address, size_bytes, [](Page* page) { page->is_discarded |= page->place != Place(); });
}

std::size_t ResidencyLedger::discarded_bytes_at(Place place) const {
  return discarded_at_[index_of(place)] << kPageShift;
}

std::vector<Place> ResidencyLedger::places_of(const void* address, std::size_t size_bytes) const {
  std::vector<Place> places;
  bytes_of_pages(address, size_bytes, [&](const Page& page) {
    places.push_back(page.now());
    return false;
  });
  return places;
}

bool ResidencyLedger::all_at(const void* address, std::size_t size_bytes, Place place) const {
  std::uintptr_t begin = address_of(address) & ~(kPageBytes - 1);
  std::uintptr_t end = round_up(address_of(address) + size_bytes, kPageBytes);
  return bytes_at(address, size_bytes, place) == end - begin;
}

std::size_t ResidencyLedger::bytes_at(const void* address, std::size_t size_bytes,
                                      Place place) const {
  return bytes_of_pages(address, size_bytes, [&](const Page& page) { return page.now() == place; });
}

std::size_t ResidencyLedger::most_bytes_at(const void* address, std::size_t size_bytes,
                                           Place device) const {
  return bytes_of_pages(address, size_bytes,
                        [&](const Page& page) { return page.may_be_at(device); });
}

std::size_t ResidencyLedger::most_bytes_at(Place device) const {
  std::size_t bytes = 0;
  for (const auto& [address, span] : spans_) {
    for (const Page& page : span.pages) bytes += page.may_be_at(device) ? kPageBytes : 0;
  }
  return bytes;
}

template <class Counts>
std::size_t ResidencyLedger::bytes_of_pages(const void* address, std::size_t size_bytes,
                                            Counts counts) const {
  std::uintptr_t begin = address_of(address) & ~(kPageBytes - 1);
  std::uintptr_t end = round_up(address_of(address) + size_bytes, kPageBytes);
  auto span = span_of(begin);
  if (span == spans_.end()) return 0;
  std::size_t bytes = 0;
  for (std::uintptr_t page = begin; page < end; page += kPageBytes) {
    if (counts(span->second.pages.at(page_index(span->first, page)))) bytes += kPageBytes;
  }
  return bytes;
}

std::size_t ResidencyLedger::bytes_at(Place place) const {
  return pages_at_[index_of(place)] << kPageShift;
}

}  // namespace uvm
