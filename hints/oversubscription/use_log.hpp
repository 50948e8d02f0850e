// Which kernels use which blocks, in the order in which a program puts the kernels on its streams.
// A program runs ahead of its device, so the newest kernels of the log have not run yet. The log
// exists only while memory is short.
//
// A record stands for one allocation. A freed address that is allocated again gets a new record, so
// a record identifies one allocation. Kernels are numbered from 1.
//
// Not thread-safe: LivePlanner's plan lock guards it. Calls no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include <uvmalloc/use_range.hpp>
#include "storage/pages.hpp"

namespace uvm::live {

using KernelNumber = std::uint64_t;
using RecordId = std::uint32_t;
using UseNumber = std::uint64_t;
inline constexpr RecordId kNoRecord = std::numeric_limits<RecordId>::max();
inline constexpr UseNumber kNoUse = std::numeric_limits<UseNumber>::max();
inline constexpr KernelNumber kBeforeLog = 0;

struct BlockExtent {
  std::uintptr_t address = 0;
  std::size_t size_bytes = 0;  // 0: there is no such block
};

struct BlockRecord {
  BlockExtent extent;
  KernelNumber born = kBeforeLog;  // the newest kernel when the block was allocated
  bool is_live = false;
  std::uint32_t logged_uses = 0;   // number of uses of the record in the log
  UseNumber last_use = kNoUse;     // the record's last use in the log
  RecordId successor = kNoRecord;  // the block with the same role one step later
};

// The pages of a block that a kernel uses, counted from the block's first page.
struct Part {
  static constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t first = 0;
  std::uint32_t end = kEnd;  // kEnd: to the end of the block

  bool covers(std::size_t page) const { return page >= first && page < end; }
};

struct LoggedUse {
  RecordId record = kNoRecord;
  Part part;
  KernelNumber kernel = 0;
  UseNumber previous = kNoUse;  // previous use of the same record
  UseNumber next = kNoUse;      // next use of the same record
  UseNumber twin = kNoUse;      // the same use one step earlier
  std::uint8_t access = 0;
};

struct LoggedKernel {
  UseNumber first_use = 0;
  std::uint32_t use_count = 0;
  std::uint64_t shapes = 0;  // a hash of the shapes of all kernels up to this one
};

class UseLog {
 public:
  // `block_of` finds the block that holds an address, for blocks from before the log.
  using BlockOf = std::function<BlockExtent(std::uintptr_t address)>;
  explicit UseLog(BlockOf block_of) : block_of_(std::move(block_of)) {}

  // Returns kNoRecord for a block below kLeastLoggedBytes.
  RecordId allocated(std::uintptr_t address, std::size_t size_bytes);
  // Returns the block that was at the address; empty if the log does not know it.
  BlockExtent freed(std::uintptr_t address);

  // Adds a kernel and returns its number. Ranges in no known block, and in small blocks, are left
  // out; a block counts once. A kernel without other ranges is not added; then returns kBeforeLog.
  // A graph's range in no known block counts as a block.
  KernelNumber add_kernel(std::span<const UseRange> ranges, Launch launch = Launch::kKernel);

  // Returns the pages in which the newest kernel uses blocks that are too small for the log.
  const std::vector<PageNumber>& pages_of_small_blocks() const { return small_pages_; }

  KernelNumber newest() const { return first_kernel_ + kernels_.size() - 1; }
  bool has_kernel(KernelNumber number) const {
    return number >= first_kernel_ && number <= newest();
  }
  const LoggedKernel& kernel(KernelNumber number) const { return kernels_[number - first_kernel_]; }
  bool has_use(UseNumber number) const {
    return number >= first_use_ && number - first_use_ < uses_.size();
  }
  const LoggedUse& use(UseNumber number) const { return uses_[number - first_use_]; }
  const BlockRecord& record(RecordId id) const { return records_[id]; }

  // Returns how many consecutive kernels up to `later` have the shapes of those up to `earlier`:
  // uses of blocks of the same sizes with the same access, compared by a hash. Returns 0 if fewer
  // than the largest power of two up to `at_least` have.
  std::uint64_t same_shapes(KernelNumber later, KernelNumber earlier, std::uint64_t at_least) const;

  // Records that the use `later` corresponds to the use `earlier` of the previous step.
  void set_twin(UseNumber later, UseNumber earlier);

  // Returns the records of live blocks that are partly or wholly in the page.
  std::span<const RecordId> blocks_in_page(PageNumber page) const;

  // Returns whether the use covers that page, which must be a page of the use's block.
  bool covers(const LoggedUse& use, PageNumber page) const {
    return use.part.covers(page - page_of(records_[use.record].extent.address));
  }
  template <class Visit>
  void each_page(const LoggedUse& use, Visit visit) const {
    each_page(records_[use.record].extent, use.part, visit);
  }
  template <class Visit>
  static void each_page(const BlockExtent& extent, const Part& part, Visit visit) {
    const std::uintptr_t end = extent.address + extent.size_bytes;
    const PageNumber begin = page_of(extent.address);
    for (std::size_t number = part.first; number < part.end && address_of(begin + number) < end;
         ++number)
      visit(begin + number);
  }
  template <class Visit>
  static void each_page(const BlockExtent& extent, Visit visit) {
    each_page(extent, Part{}, visit);
  }

 private:
  RecordId find(std::uintptr_t address) const;
  RecordId add_record(const BlockExtent& extent, KernelNumber born);
  void end(RecordId id);
  // Returns the block that holds the beginning of the range.
  BlockExtent add_use(const UseRange& range, Launch launch);
  void add_use(RecordId id, const UseRange& range);
  void forget_oldest_kernel();
  std::uint64_t shape_of(const LoggedKernel& kernel) const;
  // Whether the 2^power kernels up to both have the same shapes.
  bool have_same_shapes(KernelNumber later, KernelNumber earlier, unsigned power) const;

  BlockOf block_of_;
  std::vector<BlockRecord> records_;
  std::vector<RecordId> unused_;
  std::unordered_map<PageNumber, std::vector<RecordId>> pages_;
  std::vector<PageNumber> small_pages_;
  std::deque<LoggedKernel> kernels_;
  std::deque<LoggedUse> uses_;
  KernelNumber first_kernel_ = 1;
  UseNumber first_use_ = 0;
};

}  // namespace uvm::live
