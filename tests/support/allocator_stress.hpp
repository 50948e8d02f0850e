// Threads that use one allocator in every way at once.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/allocator_fixture.hpp"

namespace uvm::testing {

class AllocatorStress {
 public:
  AllocatorStress(CachingManagedAllocator& allocator, FakeMachine& machine)
      : allocator_(allocator), machine_(machine) {}

  // Keeps `threads` threads at work for `duration`. A thread ends after some hundred calls, and
  // another takes its place. Meanwhile, the calling thread runs `meanwhile` every 5 ms.
  void run(std::size_t threads, std::chrono::milliseconds duration,
           const std::function<void()>& meanwhile = {}) {
    const auto end = std::chrono::steady_clock::now() + duration;
    std::vector<std::thread> working;
    for (std::size_t slot = 0; slot < threads; ++slot) {
      working.emplace_back([this, slot, end] {
        for (unsigned life = 0; std::chrono::steady_clock::now() < end; ++life) {
          unsigned seed = static_cast<unsigned>(slot) * 100'000 + life;
          std::thread([this, seed] { live_and_die(seed); }).join();
        }
      });
    }
    while (meanwhile && std::chrono::steady_clock::now() < end) {
      meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (std::thread& thread : working) thread.join();
  }

  // Frees the remaining blocks, and checks that every figure is right and all memory comes back.
  void finish() {
    for (const Block& block : shelf_) give_back(block);
    shelf_.clear();
    const Statistics now = allocator_.statistics();
    EXPECT_EQ(wrong_.load(), 0) << "blocks that had lost their bytes, or could not be freed";
    EXPECT_EQ(now.live_bytes.current, 0u);
    for (std::size_t facade = 0; facade < kFacades; ++facade) {
      const ClassStatistics& figures = now.classes[facade][0][kSizeClasses];
      EXPECT_EQ(figures.allocations.increased, allocated_[facade].load());
      EXPECT_EQ(figures.allocations.current, 0u);
      EXPECT_GE(figures.requested_bytes.peak, surely_[facade].peak.load());
      EXPECT_LE(figures.requested_bytes.peak, maybe_[facade].peak.load());
    }
    std::uint64_t of_streams = 0;
    for (const StreamStatistics& stream : now.streams) {
      EXPECT_EQ(stream.live_bytes, 0);
      of_streams += stream.allocations;
    }
    EXPECT_EQ(of_streams, allocated_[0] + allocated_[1] + allocated_[2]);
    allocator_.release_cached();
    EXPECT_EQ(machine_.allocated_bytes, 0u) << "everything came back";
  }
  std::uint64_t refused() const { return refused_; }

 private:
  struct Block {
    char* base;
    std::size_t size_bytes;
    std::uint8_t mark;
    std::size_t facade;
  };
  // A number of bytes, surely or perhaps in use, with its peak.
  struct Level {
    std::atomic<std::uint64_t> now = 0;
    std::atomic<std::uint64_t> peak = 0;
    void rise(std::uint64_t bytes) {
      std::uint64_t level = now.fetch_add(bytes) + bytes;
      std::uint64_t before = peak.load();
      while (before < level && !peak.compare_exchange_weak(before, level)) {
      }
    }
    void fall(std::uint64_t bytes) { now.fetch_sub(bytes); }
  };

  void live_and_die(unsigned seed) {
    // Frees its block after the thread's cache was destroyed, because `late` is older than the
    // cache.
    struct Late {
      AllocatorStress* owner = nullptr;
      Block block{};
      ~Late() {
        if (owner != nullptr) owner->give_back(block);
      }
    };
    static thread_local Late late;
    late.owner = nullptr;
    std::mt19937 random(seed);
    const int calls = 50 + static_cast<int>(random() % 1000);
    for (int call = 0; call < calls; ++call) step(random);
    Block last{};
    if (random() % 2 == 0 && allocate(random, &last)) {
      late.block = last;
      late.owner = this;
    }
  }

  void step(std::mt19937& random) {
    Block block{};
    switch (random() % 16) {
      case 0:
        if (random() % 16 == 0) allocator_.release_cached();
        break;
      case 1:
        if (random() % 8 == 0) allocator_.statistics();
        break;
      case 2:
        if (random() % 16 == 0) allocator_.inspection().segments();
        break;
      case 3:
        if (random() % 16 == 0) allocator_.inspection().check_invariants();
        break;
      case 4: {
        std::lock_guard lock(machine_.mutex);
        machine_.busy.insert(any_stream(random));
        break;
      }
      case 5:
        machine_.finish(any_stream(random));
        break;
      default:
        if (allocate(random, &block)) use_and_shelve(random, block);
    }
  }

  bool allocate(std::mt19937& random, Block* out) {
    std::size_t size_bytes = 1 + random() % (random() % 16 == 0 ? 3 * kMiB : 8192);
    std::size_t facade = random() % kFacades;
    maybe_[facade].rise(size_bytes);
    try {
      auto* base = static_cast<char*>(
          allocator_.allocate(static_cast<Facade>(facade), 0, size_bytes, any_stream(random)));
      *out = {base, size_bytes, static_cast<std::uint8_t>(random()), facade};
    } catch (const OutOfMemoryError&) {
      maybe_[facade].fall(size_bytes);
      ++refused_;
      return false;
    }
    surely_[facade].rise(size_bytes);
    ++allocated_[facade];
    out->base[0] = out->base[size_bytes - 1] = static_cast<char>(out->mark);
    return true;
  }

  void use_and_shelve(std::mt19937& random, const Block& block) {
    if (random() % 8 == 0) allocator_.record_use(block.base, 0, any_stream(random));
    if (random() % 8 == 0) {
      MoveRequest move{Place::nowhere(), random() % 2 == 0 ? Place::host() : Place::device(0), 0,
                       any_stream(random), random() % 2 == 0};
      move.held = random() % 2 == 0;
      // A move of a part does not change the figures of the memory kinds.
      if (block.size_bytes > 4096) move.size_bytes = block.size_bytes - 1;
      MovedStorage* record = allocator_.move(block.base, move);
      if (move.held && random() % 2 == 0) allocator_.release(record);
    }
    if (random() % 2 == 0) return give_back(block);
    Block other = block;
    {
      std::lock_guard lock(shelf_mutex_);
      shelf_.push_back(block);
      if (shelf_.size() < 20) return;
      std::swap(shelf_[random() % shelf_.size()], shelf_.back());
      other = shelf_.back();
      shelf_.pop_back();
    }
    give_back(other);
  }

  void give_back(const Block& block) {
    const char mark = static_cast<char>(block.mark);
    if (block.base[0] != mark || block.base[block.size_bytes - 1] != mark) ++wrong_;
    surely_[block.facade].fall(block.size_bytes);
    if (allocator_.free(block.base) != FreeResult::kFreed) ++wrong_;
    maybe_[block.facade].fall(block.size_bytes);
  }

  static StreamHandle any_stream(std::mt19937& random) { return stream(1 + random() % 4); }

  CachingManagedAllocator& allocator_;
  FakeMachine& machine_;
  std::mutex shelf_mutex_;
  std::vector<Block> shelf_;
  std::array<Level, kFacades> surely_;
  std::array<Level, kFacades> maybe_;
  std::array<std::atomic<std::uint64_t>, kFacades> allocated_{};
  std::atomic<std::uint64_t> refused_ = 0;
  std::atomic<int> wrong_ = 0;
};

}  // namespace uvm::testing
