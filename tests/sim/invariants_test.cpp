// Many operations in random order, on one thread and on several: the machine stays consistent.
#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "machine_test.hpp"
#include "tests/support/sanitized.hpp"

namespace uvmsim::test {
namespace {

using InvariantsTest = MachineTest;

class Operations {
 public:
  Operations(std::uint32_t seed, std::byte* memory, std::size_t bytes, StreamHandle stream)
      : random_(seed), memory_(memory), bytes_(bytes), stream_(stream) {}

  void step() {
    const std::size_t first = pick(bytes_ - 1);
    const MemoryRange range{memory_ + first, 1 + pick(std::min(bytes_ - first, 6 * kBlock) - 1)};
    const int device = static_cast<int>(pick(1));
    const int location = static_cast<int>(pick(2)) - 1;
    Machine& machine = Machine::instance();
    switch (pick(4)) {
      case 0:
        machine.placements().prefetch(0, stream_, range, location);
        break;
      case 1:
        machine.placements().discard(0, stream_, range);
        break;
      case 2:
        machine.placements().advise(range, static_cast<Advice>(1 + pick(5)), location);
        break;
      case 3:
        machine.work().fill(0, stream_, {memory_ + first, 1 + pick(100) % (bytes_ - first), 1, 1},
                            Wait::kNo);
        break;
      default:
        touch(device, range);
        break;
    }
  }

 private:
  std::size_t pick(std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(0, most)(random_);
  }

  void touch(int device, MemoryRange range) {
    const uvmsim_access access{range.address, range.size_bytes, 1 + static_cast<int>(pick(2))};
    Machine::instance().work().kernel(device, nullptr, {&access, 1}, 10);
  }

  std::mt19937 random_;
  std::byte* memory_;
  std::size_t bytes_;
  StreamHandle stream_;
};

TEST_F(InvariantsTest, HoldAfterEveryRandomStep) {
  constexpr std::size_t kBytes = 48 * kBlock + 3 * kPage;
  ASSERT_EQ(machine().memory().enable_peer_access(0, 1), Status::kOk);
  device_memory(0, kCapacity / 2);
  Operations operations(7, managed(kBytes), kBytes, stream_);
  for (int step = 0; step < uvm::testing::steps(3000, 500); ++step) {
    operations.step();
    ASSERT_EQ(machine().broken_invariant(), "") << "after step " << step;
  }
}

TEST_F(InvariantsTest, HoldUnderConcurrentUse) {
  std::array<std::thread, 4> threads;
  for (std::uint32_t seed = 0; seed < threads.size(); ++seed) {
    threads[seed] = std::thread([seed] {
      constexpr std::size_t kBytes = 10 * kBlock;
      StreamHandle stream = machine().streams().create_stream(0, 0, false, 0);
      for (int round = 0; round < 30; ++round) {
        void* memory = nullptr;
        ASSERT_EQ(machine().memory().allocate_managed(0, kBytes, 1, &memory), Status::kOk);
        void* device = nullptr;
        const bool has_device =
            machine().memory().allocate_device(0, kBlock, &device) == Status::kOk;
        Operations operations(seed, static_cast<std::byte*>(memory), kBytes, stream);
        for (int step = 0; step < 20; ++step) operations.step();
        std::memset(memory, static_cast<int>(seed), kBytes);
        EXPECT_EQ(machine().memory().free(memory, Wait::kYes), Status::kOk);
        EXPECT_TRUE(!has_device || machine().memory().free(device, Wait::kYes) == Status::kOk);
      }
      machine().streams().destroy_stream(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(machine().broken_invariant(), "");
}

}  // namespace
}  // namespace uvmsim::test
