#include "sim/engine/allocation.hpp"

#include <iterator>
#include <utility>

namespace uvmsim {

AllocationRecord& AllocationTable::add(AllocationRecord record) {
  const std::uintptr_t address = record.allocation.address;
  return records_.insert_or_assign(address, std::move(record)).first->second;
}

const AllocationRecord* AllocationTable::find(std::uintptr_t address) const {
  auto it = records_.upper_bound(address);
  if (it == records_.begin()) return nullptr;
  const AllocationRecord& record = std::prev(it)->second;
  return address - record.allocation.address < record.allocation.size_bytes ? &record : nullptr;
}

AllocationRecord* AllocationTable::find(std::uintptr_t address) {
  return const_cast<AllocationRecord*>(std::as_const(*this).find(address));
}

const AllocationRecord* AllocationTable::find_start(std::uintptr_t address) const {
  const auto it = records_.find(address);
  return it == records_.end() ? nullptr : &it->second;
}

bool AllocationTable::overlaps(std::uintptr_t address, std::size_t size_bytes) const {
  if (find(address) != nullptr) return true;
  const auto next = records_.lower_bound(address);
  return next != records_.end() && next->first - address < size_bytes;
}

}  // namespace uvmsim
