#include "sim/engine/block.hpp"

namespace uvmsim {

int BlockPages::place() const {
  if (discarded.any()) return kNoLocation;
  int place = Block::kNowhere;
  for (int location = kHost; location < static_cast<int>(devices.size()); ++location) {
    if (location != kHost && at(location).mapped.any()) return kNoLocation;
    const PageMask& resident = resident_at(location);
    if (resident.none()) continue;
    if (place != Block::kNowhere || !resident.all()) return kNoLocation;
    place = location;
  }
  return place;
}

void Block::open() {
  if (!is_by_page()) {
    if (!by_page) by_page = std::make_unique<BlockPages>(device_count);
    by_page->put_all(whole_at);
  }
  whole_at = kUnknown;
}

int Block::place() {
  if (whole_at == kUnknown) whole_at = by_page->place();
  return whole_at;
}

PageMask Block::resident_at(int location) const {
  if (is_by_page()) return by_page->resident_at(location);
  return whole_at == location ? ~PageMask{} : PageMask{};
}

BlockPages Block::pages() const {
  if (is_by_page()) return *by_page;
  BlockPages all(device_count);
  all.put_all(whole_at);
  return all;
}

}  // namespace uvmsim
