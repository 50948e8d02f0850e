#include "sim/engine/ordinary_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

// Linux returns higher addresses only if programs request them.
constexpr std::size_t kAddressSpaceBytes = std::size_t{1} << 48;

void* as_pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

// Resets each run of unmapped pages to the default.
template <class Value>
void forget_where_unmapped(SpanMap<Value>* values) {
  std::vector<std::pair<std::size_t, std::size_t>> unmapped;
  const auto look_at = [&](std::size_t page, std::size_t count) {
    if (OrdinaryMemory::is_mapped(page * kPageBytes, count * kPageBytes)) return;
    for (const std::size_t last = page + count; page < last; ++page) {
      if (OrdinaryMemory::is_mapped(page * kPageBytes, kPageBytes)) continue;
      if (unmapped.empty() || unmapped.back().second != page) unmapped.emplace_back(page, page);
      unmapped.back().second = page + 1;
    }
  };
  values->visit(0, kAddressSpaceBytes / kPageBytes,
                [&](std::size_t first, std::size_t last, const Value& value) {
                  if (value == Value{}) return;
                  for (; first < last; first += kPagesPerBlock)
                    look_at(first, std::min(kPagesPerBlock, last - first));
                });
  for (const auto& [first, last] : unmapped) {
    values->update(first, last, [](const Value&) { return Value{}; });
  }
}

}  // namespace

OrdinaryMemory::OrdinaryMemory()
    : record_{.allocation = {.kind = MemoryKind::kOrdinary,
                             .address = 0,
                             .size_bytes = kAddressSpaceBytes,
                             .device = 0,
                             .flags = 0,
                             .id = 0},
              .placement = std::make_unique<Placement>(kAddressSpaceBytes / kPageBytes)} {}

bool OrdinaryMemory::is_mapped(std::uintptr_t address, std::size_t size_bytes) {
  if (size_bytes > kAddressSpaceBytes || address > kAddressSpaceBytes - size_bytes) return false;
  const std::uintptr_t first = round_down(address, kPageBytes);
  const std::uintptr_t last = round_up(address + size_bytes, kPageBytes);
  // With MS_ASYNC, msync() only checks that the range is mapped.
  return msync(as_pointer(first), last - first, MS_ASYNC) == 0;
}

PageMask OrdinaryMemory::mapped_pages(std::uintptr_t address) {
  if (is_mapped(address, kBlockBytes)) return ~PageMask{};
  PageMask pages;
  for (std::size_t page = 0; page < kPagesPerBlock; ++page) {
    pages[page] = is_mapped(address + page * kPageBytes, kPageBytes);
  }
  return pages;
}

void OrdinaryMemory::forget_unmapped() {
  forget_where_unmapped(&record_.placement->policy);
  forget_where_unmapped(&record_.placement->last_prefetch);
}

}  // namespace uvmsim
