#include "allocator/small/small_arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "storage/pages.hpp"

#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

constexpr std::size_t kSegmentBytes = SmallArena::kSegmentBytes;

// Adjacent segments of address space, lowest first; any access to a segment crashes. Has no locks,
// so a fork finds none held.
class ForbiddenSegments : public ExtentSource {
 public:
  explicit ForbiddenSegments(std::size_t segments) : limit_(segments), taken_(segments) {
    mapped_bytes_ = (segments + 1) * kSegmentBytes;
    mapped_ =
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(mapped_, MAP_FAILED);
    base_ = round_up(address_of(mapped_), kSegmentBytes);
  }
  ~ForbiddenSegments() override { munmap(mapped_, mapped_bytes_); }

  void* take() noexcept override {
    for (std::size_t i = 0; i < limit_; ++i) {
      if (taken_[i].exchange(true)) continue;
      takes_++;
      return reinterpret_cast<void*>(base_ + i * kSegmentBytes);
    }
    return nullptr;
  }

  void give_back(void* segment) noexcept override {
    const bool is_odd = address_of(segment) % kSegmentBytes != 0;
    if (!taken_.at(segment_of(segment)).exchange(false) || is_odd) odd_calls_++;
  }

  bool owns(const void* address) const noexcept override {
    return address_of(address) - base_ < taken_.size() * kSegmentBytes;
  }

  // From now on, only the first `segments` segments can be taken.
  void limit(std::size_t segments) { limit_ = segments; }
  std::set<std::size_t> taken() const {
    std::set<std::size_t> all;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i]) all.insert(i);
    }
    return all;
  }
  std::size_t takes() const { return takes_; }
  std::size_t odd_calls() const { return odd_calls_; }
  std::size_t segment_of(const void* address) const { return offset_of(address) / kSegmentBytes; }
  std::size_t offset_of(const void* address) const { return address_of(address) - base_; }

 private:
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::uintptr_t base_ = 0;
  std::atomic<std::size_t> limit_;
  std::vector<std::atomic<bool>> taken_;
  std::atomic<std::size_t> takes_{0};
  std::atomic<std::size_t> odd_calls_{0};
};

constexpr std::size_t kBlocksPerSegment = kSegmentBytes / 512;

std::vector<void*> allocated(SmallArena& arena, std::size_t size_bytes, std::size_t count) {
  std::vector<void*> blocks(count);
  blocks.resize(arena.allocate(size_bytes, blocks.data(), count));
  return blocks;
}

void free_all(SmallArena& arena, const std::vector<void*>& blocks, std::size_t size_bytes) {
  arena.free(blocks.data(), blocks.size(), size_bytes);
}

TEST(SmallArena, NothingIsTakenBeforeTheFirstBlock) {
  ForbiddenSegments segments(4);
  SmallArena arena(segments);
  arena.purge();
  EXPECT_EQ(segments.takes(), 0u);
}

TEST(SmallArena, SizesAreRoundedToMultiplesOf512Bytes) {
  EXPECT_EQ(SmallArena::usable_size(1), 512u);
  EXPECT_EQ(SmallArena::usable_size(512), 512u);
  EXPECT_EQ(SmallArena::usable_size(513), 1024u);
  EXPECT_EQ(SmallArena::usable_size(1025), 1536u);
  EXPECT_EQ(SmallArena::usable_size(1537), 2048u);
  EXPECT_EQ(SmallArena::usable_size(2049), 2560u);
  EXPECT_EQ(SmallArena::usable_size(2561), 3072u);
  EXPECT_EQ(SmallArena::usable_size(3073), 3584u);
  EXPECT_EQ(SmallArena::usable_size(3585), 4096u);
  EXPECT_EQ(SmallArena::usable_size(4096), 4096u);
}

TEST(SmallArena, EveryBlockIsAlignedTo512BytesInMemoryThatIsNeverTouched) {
  ForbiddenSegments segments(32);
  {
    SmallArena arena(segments);
    for (int round = 0; round < 2; ++round) {
      for (std::size_t size = 1; size <= SmallArena::kLargestBytes; size += 73) {
        std::vector<void*> blocks = allocated(arena, size, 200);
        ASSERT_EQ(blocks.size(), 200u);
        for (void* block : blocks) ASSERT_EQ(segments.offset_of(block) % 512, 0u) << size;
        free_all(arena, blocks, size);
      }
      arena.purge();
      EXPECT_EQ(segments.taken(), std::set<std::size_t>{});
    }
  }
  EXPECT_EQ(segments.odd_calls(), 0u);
}

TEST(SmallArena, SegmentsAreTakenOneAtATimeAndFilled) {
  ForbiddenSegments segments(32);
  SmallArena arena(segments);
  for (std::size_t n = 1; n <= 8; ++n) {
    EXPECT_EQ(allocated(arena, 512, kBlocksPerSegment).size(), kBlocksPerSegment);
    EXPECT_EQ(segments.takes(), n);
  }
  EXPECT_EQ(segments.odd_calls(), 0u);
}

TEST(SmallArena, ADrySourceShortensTheBatchUntilItHasMore) {
  ForbiddenSegments segments(4);
  segments.limit(1);
  SmallArena arena(segments);
  std::vector<void*> blocks = allocated(arena, 512, kBlocksPerSegment + 1000);
  EXPECT_EQ(blocks.size(), kBlocksPerSegment);
  EXPECT_EQ(allocated(arena, 512, 1).size(), 0u);

  arena.free(&blocks.back(), 1, 512);
  EXPECT_EQ(allocated(arena, 512, 2), std::vector<void*>{blocks.back()});

  segments.limit(3);
  EXPECT_EQ(allocated(arena, 512, 1000).size(), 1000u);
}

TEST(SmallArena, FreedPagesServeEverySizeBeforeASegmentIsTaken) {
  ForbiddenSegments segments(4);
  SmallArena arena(segments);
  free_all(arena, allocated(arena, 512, kBlocksPerSegment), 512);
  EXPECT_EQ(allocated(arena, 4096, kSegmentBytes / 4096).size(), kSegmentBytes / 4096);
  EXPECT_EQ(segments.takes(), 1u);
}

TEST(SmallArena, FreedSegmentsStayUntilPurgeAndThenOnlyEmptyOnesGo) {
  ForbiddenSegments segments(8);
  SmallArena arena(segments);
  std::vector<void*> blocks = allocated(arena, 512, 6 * kBlocksPerSegment);
  std::vector<void*> kept;
  std::vector<void*> freed;
  for (void* block : blocks) {
    bool keep = segments.offset_of(block) == 2 * kSegmentBytes ||
                segments.offset_of(block) == 5 * kSegmentBytes - 512;
    (keep ? kept : freed).push_back(block);
  }
  ASSERT_EQ(kept.size(), 2u);
  free_all(arena, freed, 512);
  EXPECT_EQ(segments.taken(), (std::set<std::size_t>{0, 1, 2, 3, 4, 5}));
  arena.purge();
  EXPECT_EQ(segments.taken(), (std::set<std::size_t>{2, 4}));
  free_all(arena, kept, 512);
  arena.purge();
  EXPECT_EQ(segments.taken(), std::set<std::size_t>{});
}

TEST(SmallArena, ASegmentThatEmptiesBetweenPurgesGoesWithTheLaterOne) {
  ForbiddenSegments segments(4);
  SmallArena arena(segments);
  std::vector<void*> blocks = allocated(arena, 2048, kSegmentBytes / 2048);
  // Each purge gets some of the segment's free pages, and none gets the whole segment at once.
  while (!blocks.empty()) {
    EXPECT_EQ(segments.taken(), std::set<std::size_t>{0});
    std::size_t count = std::min<std::size_t>(100, blocks.size());
    arena.free(&blocks[blocks.size() - count], count, 2048);
    blocks.resize(blocks.size() - count);
    arena.purge();
  }
  EXPECT_EQ(segments.taken(), std::set<std::size_t>{});
}

TEST(SmallArena, DestructionGivesEverySegmentBackThoughBlocksLive) {
  ForbiddenSegments segments(8);
  {
    SmallArena arena(segments);
    allocated(arena, 512, 3 * kBlocksPerSegment);
    allocated(arena, 3000, 150);
    EXPECT_EQ(segments.taken(), (std::set<std::size_t>{0, 1, 2, 3, 4}));
  }
  EXPECT_EQ(segments.taken(), std::set<std::size_t>{});
  EXPECT_EQ(segments.odd_calls(), 0u);
}

TEST(SmallArena, ArenasNeverShareASegment) {
  ForbiddenSegments segments(8);
  SmallArena first(segments);
  SmallArena second(segments);
  std::set<std::size_t> of_first;
  for (int i = 0; i < 2000; ++i) {
    of_first.insert(segments.segment_of(allocated(first, 512, 1).at(0)));
    EXPECT_EQ(of_first.count(segments.segment_of(allocated(second, 512, 1).at(0))), 0u);
  }
}

TEST(SmallArena, ADestroyedArenaMakesRoomForAnother) {
  ForbiddenSegments segments(1);
  for (int i = 0; i < 10000; ++i) {
    SmallArena arena(segments);
    ASSERT_EQ(allocated(arena, 512, 1).size(), 1u);
  }
}

// A slab of 64 KiB has 128 blocks and one record. If pages have 64 KiB, jemalloc's record takes 1
// KiB: one bit for each of the 8192 blocks that a page may hold.
#if defined(__aarch64__)
constexpr std::size_t kRecordBytesPerBlock = 10;
#else
constexpr std::size_t kRecordBytesPerBlock = 2;
#endif

TEST(SmallArena, RecordsTakeFewBytesPerBlockOf512) {
  ForbiddenSegments segments(256);
  SmallArena arena(segments);
  std::size_t before = arena.metadata_bytes();
  ASSERT_EQ(allocated(arena, 512, 100000).size(), 100000u);
  EXPECT_LT(arena.metadata_bytes() - before, 100000u * kRecordBytesPerBlock);
}

class SmallArenaProperty : public ::testing::TestWithParam<unsigned> {};

TEST_P(SmallArenaProperty, RandomProgramsNeverOverlapAndLeaveNoEmptySegmentBehind) {
  constexpr std::size_t kSegments = 256;
  ForbiddenSegments segments(kSegments);
  SmallArena arena(segments);
  struct Block {
    void* address;
    std::size_t size_bytes;
  };
  std::map<std::size_t, Block> live;  // by offset
  std::mt19937 random(GetParam());
  for (int step = 0; step < 20000; ++step) {
    if (random() % 100 < (live.size() < 6000 ? 60u : 30u)) {
      std::size_t size = 1 + random() % SmallArena::kLargestBytes;
      for (void* block : allocated(arena, size, 1 + random() % 4)) {
        std::size_t offset = segments.offset_of(block);
        auto after = live.lower_bound(offset);
        std::size_t end = offset + SmallArena::usable_size(size);
        ASSERT_LE(end, after == live.end() ? kSegments * kSegmentBytes : after->first);
        if (after != live.begin()) {
          auto before = std::prev(after);
          ASSERT_LE(before->first + SmallArena::usable_size(before->second.size_bytes), offset);
        }
        ASSERT_EQ(segments.taken().count(segments.segment_of(block)), 1u);
        live.emplace(offset, Block{block, size});
      }
    } else if (!live.empty()) {
      auto chosen = live.lower_bound(random() % (kSegments * kSegmentBytes));
      if (chosen == live.end()) chosen = live.begin();
      arena.free(&chosen->second.address, 1, chosen->second.size_bytes);
      live.erase(chosen);
    }
    if (step % 2000 == 1999) {
      std::set<std::size_t> occupied;
      for (const auto& [offset, block] : live) occupied.insert(offset / kSegmentBytes);
      arena.purge();
      ASSERT_EQ(segments.taken(), occupied);
    }
  }
  EXPECT_EQ(segments.odd_calls(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SmallArenaProperty, ::testing::Values(1u, 2u, 3u));

TEST(SmallArena, TwoThreadsNeverHoldTheSameBlockAndFreeEachOthers) {
  constexpr std::size_t kSegments = 64;
  constexpr std::size_t kBatch = 16;
  constexpr std::size_t kExchanged = 64;
  ForbiddenSegments segments(kSegments);
  SmallArena arena(segments);
  std::vector<std::atomic<bool>> held(kSegments * kBlocksPerSegment);
  std::atomic<std::size_t> held_twice{0};
  struct Batch {
    std::size_t size_bytes;
    std::vector<void*> blocks;
  };
  std::vector<std::atomic<Batch*>> exchange(kExchanged);
  auto drop = [&](Batch* batch) {
    if (batch == nullptr) return;
    for (void* block : batch->blocks) held[segments.offset_of(block) / 512] = false;
    free_all(arena, batch->blocks, batch->size_bytes);
    delete batch;
  };
  auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 20000; ++i) {
      std::size_t size = 512 * (1 + random() % 8);
      auto batch = std::make_unique<Batch>(Batch{size, allocated(arena, size, kBatch)});
      for (void* block : batch->blocks) {
        if (held[segments.offset_of(block) / 512].exchange(true)) held_twice++;
      }
      drop(exchange[random() % kExchanged].exchange(batch.release()));
    }
  };
  std::thread first(work, 1);
  std::thread second(work, 2);
  first.join();
  second.join();
  for (auto& slot : exchange) drop(slot.load());
  EXPECT_EQ(held_twice, 0u);
  arena.purge();
  EXPECT_EQ(segments.taken(), std::set<std::size_t>{});
  EXPECT_EQ(segments.odd_calls(), 0u);
}

TEST(SmallArena, AForkedChildUsesTheArenaWhileAThreadOfItsParentDid) {
  ForbiddenSegments segments(64);
  SmallArena arena(segments);
  std::vector<void*> kept = allocated(arena, 512, 100);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      free_all(arena, allocated(arena, 4096, 1000), 4096);
      arena.purge();
    }
  });
  for (int i = 0; i < testing::steps(50, 10); ++i) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      free_all(arena, kept, 512);
      _exit(allocated(arena, 512, 10000).size() == 10000 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace uvm
