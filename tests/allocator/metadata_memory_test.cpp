// Requests while the host has no memory for the allocator's own records. Each request succeeds or
// fails as a whole, and nothing is lost.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/registry.hpp>
#include "allocator/heap/block_pools.hpp"
#include "allocator/process/process_allocator.hpp"
#include "allocator/spans/span_store.hpp"
#include "allocator/trace/trace_recorder.hpp"
#include "hints/event_pool.hpp"
#include "runtime/log.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/failing_memory.hpp"

namespace uvm {
namespace {

using testing::failing;
using testing::failing_in_a_row;
using testing::kMiB;
using testing::stream;

class MetadataMemoryTest : public testing::AllocatorTest {
 protected:
  // Runs `program` on a fresh allocator, with the first allocation of records failing, then the
  // second, and so on until no allocation fails.
  void with_each_failing(const std::function<void(std::vector<void*>*)>& program) {
    bool has_failed = true;
    for (long number = 1; has_failed; ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      start();
      std::vector<void*> live;
      live.reserve(1024);
      failing = number;
      try {
        program(&live);
      } catch (const std::bad_alloc&) {
        // Expected. OutOfMemoryError is a std::bad_alloc, too.
      }
      has_failed = std::exchange(failing, 0) == 0;
      // Hangs if the program has left a lock taken.
      std::thread([&] { allocator->inspection().check_invariants(); }).join();
      program(&live);
      allocator->inspection().check_invariants();
      for (void* block : live) EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      allocator->release_cached();
      allocator->inspection().check_invariants();
      const Statistics now = allocator->statistics();
      EXPECT_EQ(now.live_bytes.current, 0u);
      EXPECT_EQ(now.touched_bytes.current, 0u);
      EXPECT_EQ(now.span_bytes.current, 0u);
      EXPECT_EQ(machine->allocated_bytes, 0u);
      ASSERT_LT(number, 1000);
    }
  }
};

TEST_F(MetadataMemoryTest, SmallObjects) {
  with_each_failing([&](std::vector<void*>* live) {
    for (int i = 0; i < 3; ++i) live->push_back(device(100, stream(1)));
    live->push_back(host(700));
  });
}

TEST_F(MetadataMemoryTest, SharedPages) {
  with_each_failing([&](std::vector<void*>* live) {
    for (int i = 0; i < 12; ++i) live->push_back(device(100000, stream(1)));
    live->push_back(device(3 * kMiB, stream(2)));
    live->push_back(device(20000, stream(1)));
  });
}

TEST_F(MetadataMemoryTest, WholePagesAndAlignedBlocks) {
  with_each_failing([&](std::vector<void*>* live) {
    live->push_back(host(5 * kMiB));
    live->push_back(allocator->allocate_aligned(Facade::kHost, 0, 100, 4096, nullptr));
    live->push_back(allocator->allocate_aligned(Facade::kDevice, 0, 100000, 65536, stream(1)));
  });
}

// The host gets no block while a stream works on that block, whichever step of the release fails.
TEST_F(MetadataMemoryTest, GivingBackWhatMovedAndWhatWasSmall) {
  void* moved = nullptr;
  with_each_failing([&](std::vector<void*>* live) {
    const long number = std::exchange(failing, 0);
    if (moved != nullptr && machine->busy.contains(stream(1))) {
      live->push_back(host(4 * kMiB));
      EXPECT_TRUE(live->back() != moved || !machine->busy.contains(stream(1)));
    }
    moved = host(4 * kMiB);
    to_device(moved, stream(1));
    void* small = device(512, stream(1));
    void* shared = device(5 * kMiB, stream(2));
    live->push_back(device(100000, stream(2)));
    machine->busy = {stream(1)};
    for (void* block : {moved, small, shared}) allocator->free(block);
    failing = number;
    allocator->release_cached();
    moved = nullptr;
  });
}

TEST_F(MetadataMemoryTest, BorrowingPagesOfTheOtherClass) {
  with_each_failing([&](std::vector<void*>* live) {
    const long number = std::exchange(failing, 0);
    void* whole = host(8 * kMiB);
    live->push_back(host(8 * kMiB));
    allocator->free(whole);
    failing = number;
    for (int i = 0; i < 8; ++i) live->push_back(host(900000));
  });
}

TEST_F(MetadataMemoryTest, StreamsThatComeAndGo) {
  with_each_failing([&](std::vector<void*>* live) {
    for (std::uintptr_t number = 1; number <= 4; ++number) {
      live->push_back(device(100000, stream(number)));
      allocator->streams().forget(0, stream(number));
    }
  });
}

// Each allocation of a move fails in turn. Then either nothing has changed, or the caller has the
// record.
TEST_F(MetadataMemoryTest, AMoveIsAllOrNothing) {
  const std::vector<std::pair<Place, Place>> moves = {{Place::host(), Place::device(0)},
                                                      {Place::host(), Place::device(1)},
                                                      {Place::device(0), Place::device(1)},
                                                      {Place::device(0), Place::host()}};
  for (const auto& [source, destination] : moves) {
    bool has_failed = true;
    for (long number = 1; has_failed; ++number) {
      SCOPED_TRACE(to_string(source) + " to " + to_string(destination) + ", allocation " +
                   std::to_string(number));
      start(small_configuration(), 2);
      char* block = host(4 * kMiB);
      if (source.is_device()) to_device(block, stream(1));
      const BlockDescription before = *allocator->find(block);
      const std::uint64_t moves_before = allocator->statistics().moves.total();
      machine->hints.clear();
      MovedStorage* record = nullptr;
      const MoveRequest move{source, destination,
                             destination.is_device() ? destination.index : source.index, stream(2),
                             false};
      failing = number;
      try {
        record = allocator->move(block, move);
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(record, nullptr);
      }
      has_failed = std::exchange(failing, 0) == 0;
      const BlockDescription after = *allocator->find(block);
      if (record == nullptr) {
        EXPECT_EQ(after.location, before.location);
        EXPECT_EQ(after.references, before.references);
        EXPECT_EQ(allocator->statistics().moves.total(), moves_before);
        EXPECT_TRUE(machine->hints.empty());
        record = allocator->move(block, move);
      }
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(allocator->find(block)->location, destination);
      EXPECT_EQ(allocator->find(block)->references, before.references + 1);
      EXPECT_FALSE(machine->hints.empty()) << "what was planned is sent";
      allocator->release(record);
      EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      ASSERT_LT(number, 100);
    }
  }
}

TEST_F(MetadataMemoryTest, UsesOfAllStreamsAreRecordedAllOrNone) {
  bool has_failed = true;
  for (long number = 1; has_failed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start();
    for (std::uintptr_t user = 1; user <= 5; ++user) allocator->free(device(100000, stream(user)));
    char* block = host(4 * kMiB);
    bool is_recorded = false;
    failing = number;
    try {
      is_recorded = allocator->streams().record_use_of_all(block, 0);
    } catch (const std::bad_alloc&) {
      // No use is recorded.
    }
    has_failed = std::exchange(failing, 0) == 0;
    EXPECT_EQ(allocator->streams().uses_of(block).size(), is_recorded ? 5u : 0u);
    ASSERT_LT(number, 100);
  }
}

// The ledger places a page where the last prefetch sent that page.
TEST_F(MetadataMemoryTest, PagesThatServeAnotherFacadeAreWhereTheLedgerSays) {
  bool has_failed = true;
  for (long number = 1; has_failed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    Configuration configuration = without_thread_caches();
    configuration.budget_bytes = 64 * kMiB;
    configuration.span_bytes = 64 * kMiB;
    start(configuration);
    host(2 * kMiB);
    allocator->free(host(60 * kMiB));
    char* block = nullptr;
    failing = number;
    try {
      block = device(31 * kMiB + 100000);
    } catch (const std::bad_alloc&) {
      // Each hint planned before the failure was sent, or dropped from the ledger too.
    }
    has_failed = std::exchange(failing, 0) == 0;
    if (block == nullptr) block = device(31 * kMiB + 100000);
    std::map<Place, std::size_t> sent;
    for (std::size_t offset = 0; offset + kPageBytes <= 30 * kMiB; offset += kPageBytes) {
      Place place;
      for (const Hint& hint : machine->hints) {
        const auto* begin = static_cast<const char*>(hint.address);
        if (hint.kind == HintKind::kPrefetch && begin <= block + offset &&
            block + offset < begin + hint.size_bytes) {
          place = hint.place;
        }
      }
      sent[place] += kPageBytes;
    }
    EXPECT_EQ(allocator->inspection().residency(block, 30 * kMiB), sent);
    ASSERT_LT(number, 200);
  }
}

// The next stream gets the blocks of a forgotten stream, even if its first request finds no memory.
TEST_F(MetadataMemoryTest, WhatAStreamThatIsGoneLeftIsNotLost) {
  bool has_failed = true;
  for (long number = 1; has_failed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start(without_thread_caches());
    char* left = device(4 * kMiB, stream(1));
    allocator->free(left);
    allocator->streams().forget(0, stream(1));
    char* block = nullptr;
    failing = number;
    try {
      block = device(4 * kMiB, stream(2));
    } catch (const std::bad_alloc&) {
      // The next request finds the block.
    }
    has_failed = std::exchange(failing, 0) == 0;
    if (block == nullptr) block = device(4 * kMiB, stream(2));
    EXPECT_EQ(block, left);
    ASSERT_LT(number, 100);
  }
}

// A thread that has destroyed its thread-local objects has no cache. If its request fails, no block
// stays live.
TEST_F(MetadataMemoryTest, AThreadWithoutACacheAllocatesAllOrNothing) {
  for (const std::size_t size_bytes : {std::size_t{300}, std::size_t{100000}}) {
    static std::function<void()> last_word;
    struct LastWord {
      ~LastWord() { last_word(); }
    };
    bool has_failed = true;
    for (long number = 1; has_failed; ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      start();
      char* block = nullptr;
      last_word = [&] {
        failing = number;
        try {
          block = device(size_bytes, stream(2));
        } catch (const std::bad_alloc&) {
          // Nothing is allocated.
        }
        has_failed = std::exchange(failing, 0) == 0;
      };
      // No ended thread has used the second stream.
      for (std::uintptr_t of : {1, 2}) allocator->free(device(size_bytes, stream(of)));
      std::thread([&] {
        // Destroyed last in its thread, after the cache.
        static thread_local LastWord last;
        static_cast<void>(&last);
        allocator->free(device(size_bytes, stream(1)));
      }).join();
      std::size_t live = 0;
      for (const SegmentDescription& segment : allocator->inspection().segments()) {
        for (const auto& each : segment.blocks) live += each.state == BlockState::kLive ? 1 : 0;
      }
      EXPECT_EQ(live, block != nullptr ? 1u : 0u);
      EXPECT_EQ(allocator->statistics().live_bytes.current != 0, block != nullptr);
      if (block != nullptr) {
        EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      }
      ASSERT_LT(number, 100);
    }
  }
}

// A free that needs memory for a fence may lose its own block, and nothing else.
TEST_F(MetadataMemoryTest, BlocksBehindFencesAreLostOneAtATime) {
  for (long number = 1; number < 60; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start();
    char* block = device(200000, stream(1));
    char* other = device(200000, stream(1));
    for (char* each : {block, other}) {
      for (std::uintptr_t user : {2, 3, 4}) allocator->record_use(each, 0, stream(user));
    }
    failing = number;
    EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
    failing = 0;
    EXPECT_EQ(allocator->free(other), FreeResult::kFreed);
    allocator->inspection().check_invariants();
    EXPECT_NE(device(200000, stream(1)), nullptr);
    allocator->release_cached();
    allocator->inspection().check_invariants();
  }
}

TEST_F(MetadataMemoryTest, FreesAfterAReleaseNeedNoMemory) {
  char* block = device(64 * kMiB, stream(1));
  allocator->release_cached();
  failing = 1;
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  failing = 0;
  EXPECT_EQ(device(64 * kMiB, stream(1)), block);
}

TEST_F(MetadataMemoryTest, FreesGiveBackWhatTheyCan) {
  with_each_failing([&](std::vector<void*>* live) {
    live->push_back(device(8 * kMiB, stream(1)));
    char* block = device(200000, stream(1));
    EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
    block = device(300000, stream(1));
    EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  });
}

TEST_F(MetadataMemoryTest, WhatAThreadKeepsStaysUsableWhenThereIsNoMemoryToTidyIt) {
  with_each_failing([&](std::vector<void*>* live) {
    for (int i = 0; i < 8; ++i) live->push_back(device(20000, stream(1)));
    for (; !live->empty(); live->pop_back()) {
      EXPECT_EQ(allocator->free(live->back()), FreeResult::kFreed);
    }
    for (std::size_t i = 0; i < 40; ++i) {
      char* block = device(100000 + kGranule * i, stream(1));
      EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
    }
  });
}

TEST_F(MetadataMemoryTest, SmallObjectsThatNoMemoryListsStayInTheirBin) {
  for (long number = 1; number < 8; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start();
    std::vector<char*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(device(600, stream(1)));
    for (char* block : blocks) {
      failing = number;
      EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      // The free left no lock taken.
      if (std::exchange(failing, 0) == 0) {
        std::thread([&] { allocator->inspection().check_invariants(); }).join();
      }
    }
    EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
    EXPECT_NE(device(600, stream(1)), nullptr);
  }
}

// A free is noexcept, and may be a thread's first call.
TEST_F(MetadataMemoryTest, AThreadThatGetsNoCacheCanFree) {
  for (long number = 1; number < 20; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start();
    char* large = device(100000, stream(1));
    char* small = device(300, stream(1));
    std::thread([&] {
      failing = number;
      EXPECT_EQ(allocator->free(large), FreeResult::kFreed);
      EXPECT_EQ(allocator->free(small), FreeResult::kFreed);
      failing = 0;
    }).join();
    allocator->inspection().check_invariants();
    EXPECT_NE(device(100000, stream(1)), nullptr);
  }
}

// A thread tries to get its cache several times in one request. A late cache knows no stream yet.
TEST_F(MetadataMemoryTest, AThreadThatGetsItsCacheLateAllocates) {
  for (const std::size_t size_bytes : {std::size_t{300}, std::size_t{100000}}) {
    for (long in_a_row = 1; in_a_row < 6; ++in_a_row) {
      SCOPED_TRACE(::testing::Message() << size_bytes << " bytes, " << in_a_row << " failures");
      start();
      allocator->free(device(size_bytes, stream(1)));
      std::thread([&] {
        failing_in_a_row = in_a_row;
        failing = 1;
        char* block = nullptr;
        try {
          block = device(size_bytes, stream(1));
        } catch (const std::bad_alloc&) {
          // Nothing is allocated.
        }
        failing = 0;
        if (block != nullptr) {
          EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
        }
      }).join();
      allocator->inspection().check_invariants();
      EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
    }
  }
}

TEST_F(MetadataMemoryTest, WhatAThreadLeavesIsThereWhetherOrNotItCanBeListedWhenItEnds) {
  bool has_failed = true;
  for (long number = 1; has_failed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    start();
    // Destroyed last in its thread, after the thread has returned its blocks.
    static std::atomic<bool> failed;
    struct LastWord {
      ~LastWord() { failed = std::exchange(failing, 0) == 0; }
    };
    std::thread([&] {
      static thread_local LastWord last;
      static_cast<void>(&last);
      std::vector<char*> blocks;
      for (std::size_t i = 0; i < 20; ++i)
        blocks.push_back(device(20000 + kGranule * i, stream(1)));
      for (char* block : blocks) EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      failing = number;
    }).join();
    has_failed = failed;
    allocator->inspection().check_invariants();
    EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
    allocator->release_cached();
    EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
    EXPECT_EQ(machine->allocated_bytes, 0u);
    ASSERT_LT(number, 100);
  }
}

TEST_F(MetadataMemoryTest, WhatAThreadWantsOfPlacementOutlivesARequestThatFails) {
  with_each_failing([&](std::vector<void*>* live) {
    set_thread_policy(Policy::kDriver);
    try {
      live->push_back(device(3 * kMiB, stream(1)));
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(set_thread_policy(std::nullopt), Policy::kDriver);
      throw;
    }
    EXPECT_EQ(set_thread_policy(std::nullopt), Policy::kDriver);
  });
}

// If a pool cannot take pages, the pages at higher addresses stay unchanged.
TEST(MetadataMemory, PagesThatAPoolCannotTakeLeaveTheirNeighboursAlone) {
  Span span;
  char* const base = reinterpret_cast<char*>(64 * kPageBytes);
  span.base = base;
  span.size_bytes = 128 * kPageBytes;
  auto page = [&](std::size_t number) { return base + number * kPageBytes; };
  BlockPools pools(0);
  Pool& pool = pools.at(pools.table().open({Facade::kDevice, 0, stream(1)}));
  bool has_failed = false;
  // Adds pages in descending order, two at a time, so that memory for records can run out between
  // them.
  for (std::size_t number = 100; number >= 20; number -= 2) {
    for (bool done = false; !done;) {
      for (long allocation = 1; !done; ++allocation) {
        failing = allocation;
        try {
          pools.add_pages({&span, page(number), 2 * kPageBytes, {}}, pool);
          done = true;
        } catch (const std::bad_alloc&) {
          has_failed = true;
        }
        failing = 0;
        EXPECT_EQ(pools.directory().is_ours(page(number)), done);
        EXPECT_EQ(pools.directory().is_ours(page(number + 1)), done);
        if (number < 100) {
          ASSERT_TRUE(pools.directory().is_ours(page(number + 2))) << "another run's";
        }
      }
    }
  }
  EXPECT_TRUE(has_failed);
}

TEST(MetadataMemory, ABlockThatCannotBeMadeTakesNoRecord) {
  Span span;
  span.base = reinterpret_cast<char*>(64 * kPageBytes);
  span.size_bytes = 4096 * kPageBytes;
  BlockPools pools(0);
  Pool& pool = pools.at(pool_of(pools.table().open({Facade::kHost, 0}), PoolClass::kPageGranular));
  std::size_t pages = 0;
  auto add = [&] {
    pools.add_pages({&span, span.base + pages * kPageBytes, kPageBytes, {}}, pool);
    ++pages;
  };
  add();
  // Adds pages until the records of pages need new memory.
  failing = 1;
  while (failing != 0) {
    try {
      add();
    } catch (const std::bad_alloc&) {
    }
  }
  const std::size_t before = pools.metadata_bytes();
  for (int i = 0; i < 4096; ++i) {
    failing = 1;
    EXPECT_THROW(add(), std::bad_alloc);
  }
  EXPECT_EQ(pools.metadata_bytes(), before);
}

TEST(MetadataMemory, SpansThatCannotBeListedStay) {
  for (long number = 1; number <= 3; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    SpanStore spans;
    for (int i = 0; i < 3; ++i) {
      auto span = std::make_unique<Span>();
      span->size_bytes = 4 * kMiB;
      spans.add(std::move(span));
    }
    std::size_t removed = 0;
    failing = number;
    try {
      removed = spans.remove_empty().size();
    } catch (const std::bad_alloc&) {
      // No span is removed.
    }
    failing = 0;
    ASSERT_EQ(removed + spans.spans().size(), 3u);
    for (const auto& span : spans.spans()) ASSERT_NE(span, nullptr);
    EXPECT_EQ(spans.remove_empty().size(), 3u - removed);
  }
}

TEST(MetadataMemory, EventsAreGivenBackWithoutMemory) {
  auto machine = std::make_shared<testing::FakeMachine>();
  testing::FakeRuntime runtime(machine);
  {
    EventPool pool(runtime, 1);
    RuntimeStatus status;
    failing = 1;
    EXPECT_EQ(pool.record({0, stream(1)}, &status), nullptr);
    EXPECT_EQ(std::exchange(failing, 0), 0);
    EXPECT_EQ(status.error, RuntimeError::kOutOfMemory);
    EXPECT_EQ(machine->events.size(), 0u) << "made before there was room to keep it";
    std::vector<EventHandle> events;
    for (int i = 0; i < 9; ++i) events.push_back(pool.record({0, stream(1)}, &status));
    failing = 1;
    for (EventHandle event : events) pool.release(0, event);
    EXPECT_EQ(std::exchange(failing, 0), 1);
    EXPECT_EQ(machine->events.size(), 9u);
  }
  EXPECT_EQ(machine->events.size(), 0u);
}

TEST(MetadataMemory, LinesAreLoggedWithoutMemory) {
  const std::string name(100, 'x');
  ::testing::internal::CaptureStderr();
  failing = 1;
  log_line(LogLevel::kError, "a line that is too long for the string that holds short ones");
  log(LogLevel::kError, "{} and {:.2f} of {}", 1, 2.5, name);
  EXPECT_EQ(failing, 1);
  log_once(LogLevel::kError, "no memory", "said where there is no memory to note it");
  EXPECT_EQ(failing, 0);
  log_once(LogLevel::kError, "no memory", "once more");
  log_once(LogLevel::kError, "no memory", "not again");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "uvmalloc: a line that is too long for the string that holds short ones\n"
            "uvmalloc: 1 and 2.50 of " +
                name +
                "\nuvmalloc: said where there is no memory to note it\n"
                "uvmalloc: once more\n");
}

TEST(MetadataMemory, ATraceThatCannotBeStartedLeavesNoFileOpen) {
  const std::string file = ::testing::TempDir() + "uvmalloc-metadata.trace";
  const std::vector<TraceRecorder::Device> devices = {{"card", 1}};
  auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  bool has_failed = true;
  for (long number = 1; has_failed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    TraceRecorder recorder;
    failing = number;
    try {
      recorder.start(file, devices);
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(recorder.enabled());
    }
    has_failed = std::exchange(failing, 0) == 0;
    if (has_failed) {
      EXPECT_EQ(open_files(), before);
    }
    recorder.stop();
    EXPECT_EQ(recorder.start(file, devices), "");
    recorder.stop();
    ASSERT_LT(number, 100);
  }
  std::filesystem::remove(file);
}

// Runs `body` in child processes, with the first allocation failing, then the second, and so on
// until no allocation fails. `body` returns whether all is well.
void in_processes_with_each_failing(const std::function<bool(long number)>& body) {
  enum Outcome { kGood = 0, kBad = 1, kNoneFailed = 2 };
  for (long number = 1;; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const pid_t child = fork();
    if (child == 0) {
      const int nowhere = open("/dev/null", O_WRONLY);
      dup2(nowhere, STDERR_FILENO);
      testing::forget_failures();
      const bool good = body(number);
      _exit(!good ? kBad : testing::has_any_failed() ? kGood : kNoneFailed);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    ASSERT_NE(WEXITSTATUS(status), kBad);
    if (WEXITSTATUS(status) == kNoneFailed) break;
    ASSERT_LT(number, 1000);
  }
}

TEST(MetadataMemory, AProcessHasOneAllocatorWhateverMemoryThereWasWhenItWasMade) {
  const auto machine = std::make_shared<testing::FakeMachine>();
  setenv("UVMALLOC_RUNTIME", "fake", 1);
  setenv("UVMALLOC_LOG", "info", 1);
  ASSERT_TRUE(add_runtime(
      "fake", [&](std::string*) { return std::make_unique<testing::FakeRuntime>(machine); }));
  in_processes_with_each_failing([&](long number) {
    failing = number;
    try {
      activate_process_allocator();
    } catch (const std::bad_alloc&) {
      // The next call tries again.
    }
    failing = 0;
    const Activation& activation = activate_process_allocator();
    const bool one_runtime = machine.use_count() == 2;
    return activation.allocator != nullptr && activation.allocator == process_allocator() &&
           one_runtime;
  });
}

TEST(MetadataMemory, HowTensorsMoveCanBeSetAndReadWithoutMemory) {
  in_processes_with_each_failing([](long number) {
    failing = number;
    const int before = uvmalloc_set_move_on_copy(1);
    const int now = uvmalloc_move_on_copy();
    failing = 0;
    return before == 0 && now == 1 && uvmalloc_set_move_on_copy(0) == 1 &&
           uvmalloc_move_on_copy() == 0;
  });
}

}  // namespace
}  // namespace uvm
