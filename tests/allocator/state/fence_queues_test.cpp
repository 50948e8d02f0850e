// Blocks behind fences, compared with a list of all fences.
#include "allocator/state/fence_queues.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

namespace uvm {
namespace {

// Handles are only compared, never used.
template <class Handle>
Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number * 16);
}

TEST(FenceQueues, ABlockIsOverWithItsLastFenceAndStreamsInTheirOrder) {
  std::mt19937 random(1);
  std::array<Block, 200> blocks;
  FenceQueues queues;
  std::map<DeviceStream, std::vector<std::pair<Block*, EventHandle>>> model;
  std::map<Block*, std::size_t> left;
  std::uintptr_t events = 0;
  std::size_t next = 0;
  std::size_t finished = 0;
  while (finished < blocks.size()) {
    ASSERT_EQ(queues.empty(), left.empty());
    if (next < blocks.size() && random() % 2 == 0) {
      Block* block = &blocks[next++];
      std::vector<Fence> fences;
      for (std::uintptr_t stream = 0; stream < 4; ++stream) {
        if (random() % 3 == 0 || (stream == 3 && fences.empty())) {
          fences.push_back({{static_cast<int>(stream % 2), handle<StreamHandle>(stream + 1)},
                            handle<EventHandle>(++events)});
        }
      }
      for (const Fence& fence : fences) model[fence.stream].emplace_back(block, fence.event);
      left[block] = fences.size();
      queues.add(block, fences);
    } else if (!left.empty()) {
      auto at = std::next(model.begin(), static_cast<long>(random() % model.size()));
      auto [block, event] = at->second.front();
      DeviceStream stream = at->first;
      at->second.erase(at->second.begin());
      if (at->second.empty()) model.erase(at);
      Block* over = queues.take_oldest(stream);
      if (--left[block] == 0) {
        left.erase(block);
        ++finished;
        ASSERT_EQ(over, block);
      } else {
        ASSERT_EQ(over, nullptr);
      }
    }
    std::vector<EventHandle> oldest, newest, all;
    for (const auto& [stream, queue] : model) {
      for (std::size_t i = 0; i < std::min<std::size_t>(queue.size(), 3); ++i) {
        oldest.push_back(queue[i].second);
      }
      newest.push_back(queue.back().second);
      for (const auto& [block, event] : queue) all.push_back(event);
    }
    auto events_of = [](const std::vector<Fence>& fences) {
      std::vector<EventHandle> out;
      for (const Fence& fence : fences) out.push_back(fence.event);
      return out;
    };
    ASSERT_EQ(events_of(queues.oldest(3, SIZE_MAX, {})), oldest);
    ASSERT_EQ(events_of(queues.newest()), newest);
    std::vector<Fence> visited;
    queues.each([&](const Fence& fence) { visited.push_back(fence); });
    ASSERT_EQ(events_of(visited), all);
  }
  EXPECT_TRUE(queues.empty());
}

TEST(FenceQueues, StreamsAreLookedAtInTurns) {
  FenceQueues queues;
  std::array<Block, 5> blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    queues.add(&blocks[i], {{{0, handle<StreamHandle>(i + 1)}, handle<EventHandle>(i + 1)}});
  }
  DeviceStream last;
  std::vector<std::uintptr_t> seen;
  for (int turn = 0; turn < 3; ++turn) {
    for (const Fence& fence : queues.oldest(3, 2, last)) {
      seen.push_back(reinterpret_cast<std::uintptr_t>(fence.stream.handle) / 16);
      last = fence.stream;
    }
  }
  EXPECT_EQ(seen, (std::vector<std::uintptr_t>{1, 2, 3, 4, 5, 1}));
  EXPECT_EQ(queues.oldest(3, 100, last).size(), 5u) << "each once";
}

}  // namespace
}  // namespace uvm
