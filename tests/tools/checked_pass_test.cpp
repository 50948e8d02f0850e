// What a pass that is not timed finds in allocators with known faults.
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <vector>

#include "../../bench/allocators/checked_pass.hpp"

namespace uvm::bench {
namespace {

// Gives blocks at increasing addresses, until `capacity_bytes` are given.
class IncreasingAdapter {
 public:
  explicit IncreasingAdapter(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  void* allocate(std::size_t size_bytes, int) {
    if (live_bytes + size_bytes > capacity_bytes_) throw std::bad_alloc();
    live_bytes += size_bytes;
    next_ += step_;
    return reinterpret_cast<void*>(next_);
  }
  void free(void*, std::size_t size_bytes, int stream) {
    live_bytes -= size_bytes;
    freed_on.push_back(stream);
  }

  std::size_t live_bytes = 0;
  std::vector<int> freed_on;

 protected:
  std::uintptr_t step_ = 0x1000;

 private:
  std::size_t capacity_bytes_;
  std::uintptr_t next_ = 0x1000;
};

// Each block begins 100 bytes after the block before it.
class OverlappingAdapter final : public IncreasingAdapter {
 public:
  OverlappingAdapter() : IncreasingAdapter(1u << 20) { step_ = 100; }
};

template <class Adapter>
CheckedPass check(Adapter& allocator, const OperationSequence& sequence) {
  const std::vector<int> streams = {7, 8};
  return PassChecker(allocator, sequence, streams).run();
}

OperationSequence three_blocks() {
  OperationSequence sequence;
  sequence.allocate(0, 150);
  sequence.allocate(1, 150, 1);
  sequence.free(0);
  sequence.allocate(0, 150);
  return sequence;
}

TEST(CheckedPass, AnAllocatorThatServesEverythingHasNoFault) {
  IncreasingAdapter allocator(300);
  const CheckedPass pass = check(allocator, three_blocks());
  EXPECT_EQ(pass.failed_requests, 0u);
  EXPECT_EQ(pass.overlapping_blocks, 0u);
  EXPECT_EQ(allocator.live_bytes, 0u) << "what the sequence leaves is freed";
  EXPECT_EQ(allocator.freed_on, (std::vector<int>{7, 7, 8}));
}

TEST(CheckedPass, RequestsThatFailAreCountedAndNotFreed) {
  IncreasingAdapter allocator(149);
  EXPECT_EQ(check(allocator, three_blocks()).failed_requests, 3u);
  EXPECT_TRUE(allocator.freed_on.empty());
}

// The second block overlaps the first. The third block overlaps only the second, and the check
// compares only with blocks that overlapped none.
TEST(CheckedPass, BlocksOverOthersThatAreLiveAreCounted) {
  OverlappingAdapter allocator;
  EXPECT_EQ(check(allocator, three_blocks()).overlapping_blocks, 1u);
  OperationSequence sequence;
  for (std::uint32_t slot = 0; slot < 3; ++slot) sequence.allocate(slot, 250);
  EXPECT_EQ(check(allocator, sequence).overlapping_blocks, 2u);
}

}  // namespace
}  // namespace uvm::bench
