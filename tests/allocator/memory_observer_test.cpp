// Calls to a memory observer.
#include <string>
#include <vector>

#include <fmt/format.h>

#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class Listener final : public MemoryObserver {
 public:
  void pages_added(const StreamKey&, void*, std::size_t size_bytes) noexcept override {
    heard.push_back(fmt::format("+{} MiB", size_bytes / kMiB));
  }
  void pages_removed(const StreamKey&, void*, std::size_t size_bytes) noexcept override {
    heard.push_back(fmt::format("-{} MiB", size_bytes / kMiB));
  }
  void free_completed(const StreamKey&, void*, std::size_t requested_bytes) noexcept override {
    heard.push_back(fmt::format("free {}", requested_bytes));
  }
  std::vector<std::string> heard;
};

using Heard = std::vector<std::string>;

class MemoryObserverTest : public testing::AllocatorTest {
 protected:
  Listener listener;
};

TEST_F(MemoryObserverTest, PagesOfTheDeviceFacadeAreHeardOfWhenTheyComeAndGo) {
  FrameworkBridge(*allocator).set_memory_observer(&listener);
  char* block = device(4 * kMiB);
  allocator->free(device(100));
  allocator->free(block);
  allocator->free(host(8 * kMiB));
  EXPECT_EQ(listener.heard, (Heard{"+4 MiB", "+2 MiB"}));
  listener.heard.clear();
  allocator->release_cached();
  EXPECT_EQ(listener.heard, Heard{"-6 MiB"});
  listener.heard.clear();
  FrameworkBridge(*allocator).set_memory_observer(nullptr);
  allocator->free(device(3 * kMiB));
  EXPECT_TRUE(listener.heard.empty());
}

TEST_F(MemoryObserverTest, AFreeThatHadToWaitIsHeardOfWhenItIsOver) {
  FrameworkBridge(*allocator).set_memory_observer(&listener);
  char* block = device(4 * kMiB, stream(1));
  EXPECT_FALSE(allocator->find(block)->waits_when_freed);
  allocator->free(block);
  block = device(4 * kMiB, stream(1));
  machine->busy = {stream(2)};
  allocator->record_use(block, 0, stream(2));
  EXPECT_TRUE(allocator->find(block)->waits_when_freed);
  listener.heard.clear();
  allocator->free(block);
  EXPECT_TRUE(listener.heard.empty());
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
  EXPECT_EQ(listener.heard, Heard{"free 4194304"});
}

}  // namespace
}  // namespace uvm
