// What a thread may still do while it ends. Destructors of thread-local objects and of
// thread-specific data (pthread_key_create) run before and after those of the allocator and
// jemalloc, in up to four rounds. Each destructor may use the allocator in each round.
#include <pthread.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class ThreadEndTest : public testing::AllocatorTest {
 protected:
  // Makes keys before and after the keys of the allocator and jemalloc.
  void SetUp() override {
    for (pthread_key_t& key : keys_) ASSERT_EQ(pthread_key_create(&key, end), 0);
    AllocatorTest::SetUp();
    allocator->free(device(100));
    for (pthread_key_t& key : later_keys_) ASSERT_EQ(pthread_key_create(&key, end), 0);
  }
  void TearDown() override {
    for (pthread_key_t key : keys_) pthread_key_delete(key);
    for (pthread_key_t key : later_keys_) pthread_key_delete(key);
    AllocatorTest::TearDown();
  }

  struct Last {
    ThreadEndTest* test;
    const std::function<void()>* body;
    pthread_key_t key;
    int rounds;
  };
  static void end(void* argument) {
    auto* last = static_cast<Last*>(argument);
    (*last->body)();
    if (--last->rounds != 0) pthread_setspecific(last->key, last);
  }

  // Starts threads that each run `first`. While a thread ends, each key runs `body` once a round.
  void run_in_ending_threads(const std::function<void()>& first, const std::function<void()>& body,
                             int rounds) {
    for (int i = 0; i < kThreads; ++i) {
      std::vector<Last> lasts;
      for (pthread_key_t key : {keys_[0], keys_[1], later_keys_[0], later_keys_[1]}) {
        lasts.push_back({this, &body, key, rounds});
      }
      std::thread([&] {
        first();
        for (Last& last : lasts) pthread_setspecific(last.key, &last);
      }).join();
    }
    allocator->inspection().check_invariants();
    EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
    allocator->release_cached();
    EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
  }

  // Uses all functions with small objects, packed blocks and page-granular blocks.
  void use_all() {
    for (Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
      for (std::size_t size_bytes :
           {std::size_t{100}, std::size_t{4096}, std::size_t{100000}, 3 * kMiB}) {
        void* block = allocator->allocate(facade, 0, size_bytes, stream(1));
        ASSERT_NE(block, nullptr);
        const auto found = allocator->find(block);
        ASSERT_TRUE(found.has_value() && found->live);
        EXPECT_EQ(found->requested_bytes, size_bytes);
        EXPECT_EQ(found->facade, facade);
        EXPECT_TRUE(allocator->record_use(block, 0, stream(2)));
        if (facade == Facade::kHost) to_device(block, stream(1));
        EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      }
    }
    EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
    allocator->release_cached();
  }

  static constexpr int kThreads = 20;
  static constexpr int kMostRounds = 4;

 private:
  pthread_key_t keys_[2] = {};
  pthread_key_t later_keys_[2] = {};
};

TEST_F(ThreadEndTest, AThreadThatUsedTheAllocatorMayDoSoInEachRoundOfItsEnd) {
  run_in_ending_threads([&] { use_all(); }, [&] { use_all(); }, kMostRounds);
}

TEST_F(ThreadEndTest, AThreadMayBeginToUseTheAllocatorWhileItEnds) {
  run_in_ending_threads([] {}, [&] { use_all(); }, kMostRounds);
}

TEST_F(ThreadEndTest, ABlockMayBeFreedWhenItsThreadEnds) {
  thread_local void* block = nullptr;
  run_in_ending_threads(
      [&] { block = device(1000, stream(1)); },
      [&] { EXPECT_EQ(allocator->free(std::exchange(block, nullptr)), FreeResult::kFreed); },
      kMostRounds);
}

TEST_F(ThreadEndTest, ThreadLocalObjectsMayUseTheAllocatorInTheirDestructors) {
  struct Local {
    ~Local() {
      if (body != nullptr) (*body)();
    }
    const std::function<void()>* body = nullptr;
  };
  const std::function<void()> body = [&] { use_all(); };
  for (const bool is_first : {true, false}) {
    for (int i = 0; i < kThreads; ++i) {
      std::thread([&] {
        // If `is_first`, `local` is destroyed after the allocator's thread objects; else before.
        if (!is_first) use_all();
        static thread_local Local local;
        local.body = &body;
        if (is_first) use_all();
      }).join();
    }
  }
}

TEST_F(ThreadEndTest, WhatIsKeptForAThreadThatBeginsWhileItEndsGoesWithIt) {
  auto begin_late = [&] {
    run_in_ending_threads([] {}, [&] { allocator->free(device(100000, stream(1))); }, 1);
  };
  begin_late();
  const std::size_t before = allocator->statistics().metadata_bytes;
  begin_late();
  EXPECT_EQ(allocator->statistics().metadata_bytes, before);
}

TEST_F(ThreadEndTest, ATraceHasWhatIsAllocatedWhileAThreadEnds) {
  const std::string file = ::testing::TempDir() + "uvmalloc-thread-end.trace";
  ASSERT_EQ(allocator->tracing().start(file), "");
  const auto before = std::filesystem::file_size(file);
  run_in_ending_threads([&] { use_all(); }, [&] { use_all(); }, 3);
  allocator->tracing().stop();
  EXPECT_GT(std::filesystem::file_size(file), before);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace uvm
