#include "hints/oversubscription/use_log.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {
RecordId UseLog::allocated(std::uintptr_t address, std::size_t size_bytes) {
  if (size_bytes < policy::kLeastLoggedBytes) return kNoRecord;
  // A record at this address belongs to a block that was freed before the log began.
  if (const RecordId stale = find(address); stale != kNoRecord) end(stale);
  return add_record({address, size_bytes}, newest());
}

BlockExtent UseLog::freed(std::uintptr_t address) {
  const RecordId id = find(address);
  if (id == kNoRecord || records_[id].extent.address != address) return {};
  const BlockExtent extent = records_[id].extent;
  end(id);
  return extent;
}

RecordId UseLog::find(std::uintptr_t address) const {
  for (const RecordId id : blocks_in_page(page_of(address))) {
    const BlockExtent& extent = records_[id].extent;
    if (address - extent.address < extent.size_bytes) return id;
  }
  return kNoRecord;
}

std::span<const RecordId> UseLog::blocks_in_page(PageNumber page) const {
  const auto found = pages_.find(page);
  if (found == pages_.end()) return {};
  return found->second;
}

RecordId UseLog::add_record(const BlockExtent& extent, KernelNumber born) {
  RecordId id = kNoRecord;
  if (unused_.empty()) {
    id = static_cast<RecordId>(records_.size());
    records_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  records_[id] = {.extent = extent, .born = born, .is_live = true};
  each_page(extent, [&](PageNumber page) { pages_[page].push_back(id); });
  return id;
}

void UseLog::end(RecordId id) {
  BlockRecord& record = records_[id];
  record.is_live = false;
  each_page(record.extent, [&](PageNumber page) {
    const auto found = pages_.find(page);
    std::erase(found->second, id);
    if (found->second.empty()) pages_.erase(found);
  });
  if (record.logged_uses == 0) unused_.push_back(id);
}

namespace {

// The hash of kernels is a polynomial of their shapes, so that the hash of consecutive kernels
// follows from the hashes at both ends.
constexpr std::uint64_t kShapeBase = 0x9e3779b97f4a7c15;
// A run of kernels is found by halves, from this power of two on.
constexpr unsigned kMostPower = std::bit_width(policy::kMostLoggedKernels) - 1;

constexpr std::array<std::uint64_t, kMostPower + 1> powers_of_base() {
  std::array<std::uint64_t, kMostPower + 1> powers{kShapeBase};
  for (unsigned i = 1; i <= kMostPower; ++i) powers[i] = powers[i - 1] * powers[i - 1];
  return powers;
}

}  // namespace

std::uint64_t UseLog::shape_of(const LoggedKernel& kernel) const {
  std::uint64_t shape = kernel.use_count;
  for (std::uint32_t i = 0; i < kernel.use_count; ++i) {
    const LoggedUse& each = use(kernel.first_use + i);
    shape = (shape ^ each.access) * kShapeBase + records_[each.record].extent.size_bytes;
    shape ^= shape >> 29;
  }
  return shape;
}

bool UseLog::have_same_shapes(KernelNumber later, KernelNumber earlier, unsigned power) const {
  static constexpr auto kPowers = powers_of_base();
  const std::uint64_t kernels = std::uint64_t{1} << power;
  if (earlier <= kernels || !has_kernel(earlier - kernels)) return false;
  const auto hash = [&](KernelNumber last) {
    return kernel(last).shapes - kernel(last - kernels).shapes * kPowers[power];
  };
  return hash(later) == hash(earlier);
}

std::uint64_t UseLog::same_shapes(KernelNumber later, KernelNumber earlier,
                                  std::uint64_t at_least) const {
  const auto least = static_cast<unsigned>(std::bit_width(at_least));
  if (least > 1 && !have_same_shapes(later, earlier, least - 1)) return 0;
  std::uint64_t same = 0;
  for (unsigned power = kMostPower + 1; power-- > 0;) {
    if (have_same_shapes(later - same, earlier - same, power)) same += std::uint64_t{1} << power;
  }
  return same;
}

BlockExtent UseLog::add_use(const UseRange& range, Launch launch) {
  RecordId id = find(range.address);
  if (id == kNoRecord) {
    BlockExtent extent = block_of_(range.address);
    // The range may also begin between the last byte of a block and the next block.
    if (launch == Launch::kGraph && range.address - extent.address >= extent.size_bytes)
      extent = {range.address, range.size_bytes};
    if (extent.size_bytes < policy::kLeastLoggedBytes) {
      if (extent.size_bytes != 0)
        each_page(extent, [this](PageNumber page) { small_pages_.push_back(page); });
      return extent;
    }
    id = add_record(extent, kBeforeLog);
  }
  add_use(id, range);
  return records_[id].extent;
}

KernelNumber UseLog::add_kernel(std::span<const UseRange> ranges, Launch launch) {
  const UseNumber first = first_use_ + uses_.size();
  small_pages_.clear();
  for (UseRange range : ranges) {
    BlockExtent extent = add_use(range, launch);
    // The temporary memory of graphs, and of the parts of one graph, overlaps.
    while (launch == Launch::kGraph && range.size_bytes != kToEndOfBlock) {
      const std::size_t covered_bytes = extent.address + extent.size_bytes - range.address;
      if (covered_bytes >= range.size_bytes) break;
      range.address += covered_bytes;
      range.size_bytes -= covered_bytes;
      extent = add_use(range, launch);
    }
  }
  LoggedKernel kernel{.first_use = first};
  kernel.use_count = static_cast<std::uint32_t>(first_use_ + uses_.size() - first);
  if (kernel.use_count == 0) return kBeforeLog;
  const std::uint64_t before = kernels_.empty() ? 0 : kernels_.back().shapes;
  kernel.shapes = before * kShapeBase + shape_of(kernel);
  kernels_.push_back(kernel);
  while (kernels_.size() > policy::kMostLoggedKernels ||
         (uses_.size() > policy::kMostLoggedUses && kernels_.size() > 1))
    forget_oldest_kernel();
  return newest();
}

namespace {

Part part_of(const BlockExtent& extent, const UseRange& range) {
  const std::size_t left_bytes = extent.size_bytes - (range.address - extent.address);
  const PageNumber begin = page_of(extent.address);
  Part part{.first = static_cast<std::uint32_t>(page_of(range.address) - begin)};
  if (range.size_bytes == 0 || range.size_bytes >= left_bytes) return part;
  const std::uintptr_t last = range.address + range.size_bytes - 1;
  part.end = static_cast<std::uint32_t>(page_of(last) - begin) + 1;
  return part;
}

Part joined(const Part& one, const Part& other) {
  return {std::min(one.first, other.first), std::max(one.end, other.end)};
}

}  // namespace

void UseLog::add_use(RecordId id, const UseRange& range) {
  BlockRecord& record = records_[id];
  const Part part = part_of(record.extent, range);
  const KernelNumber kernel = newest() + 1;
  if (record.last_use != kNoUse && use(record.last_use).kernel == kernel) {
    LoggedUse& known = uses_[record.last_use - first_use_];
    known.access = joined_access(known.access, range.access);
    known.part = joined(known.part, part);
    return;
  }
  const UseNumber number = first_use_ + uses_.size();
  if (record.last_use != kNoUse) uses_[record.last_use - first_use_].next = number;
  const UseNumber previous = record.last_use;
  record.last_use = number;
  ++record.logged_uses;
  uses_.push_back(
      {.record = id, .part = part, .kernel = kernel, .previous = previous, .access = range.access});
}

void UseLog::forget_oldest_kernel() {
  const LoggedKernel& oldest = kernels_.front();
  for (std::uint32_t i = 0; i < oldest.use_count; ++i) {
    BlockRecord& record = records_[uses_.front().record];
    if (record.last_use == first_use_) record.last_use = kNoUse;
    if (--record.logged_uses == 0 && !record.is_live) unused_.push_back(uses_.front().record);
    uses_.pop_front();
    ++first_use_;
  }
  kernels_.pop_front();
  ++first_kernel_;
}

void UseLog::set_twin(UseNumber later, UseNumber earlier) {
  LoggedUse& use = uses_[later - first_use_];
  use.twin = earlier;
  const RecordId before = this->use(earlier).record;
  if (before != use.record) records_[before].successor = use.record;
}

}  // namespace uvm::live
