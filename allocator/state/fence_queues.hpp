// Freed blocks that streams still use. Each stream has a queue of its fences, in the order of their
// recording. A stream finishes its fences in that order, so only the oldest ones are queried. A
// block is free when its last fence is over. Calls no driver.
//
// Guarded by the state lock, except empty(), which any thread may call at any time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <new>
#include <unordered_map>
#include <vector>

#include "allocator/heap/block.hpp"

namespace uvm {

class FenceQueues {
 public:
  // Makes the block wait for all of these fences; there must be at least one. If this throws
  // std::bad_alloc, the block waits for no fence.
  void add(Block* block, const std::vector<Fence>& fences) {
    left_[block] = fences.size();
    std::size_t added = 0;
    try {
      for (; added < fences.size(); ++added) {
        streams_[fences[added].stream].push_back({block, fences[added].event});
      }
    } catch (const std::bad_alloc&) {
      while (added-- != 0) streams_[fences[added].stream].pop_back();
      std::erase_if(streams_, [](const auto& entry) { return entry.second.empty(); });
      left_.erase(block);
      throw;
    }
    blocks_.store(left_.size(), std::memory_order_relaxed);
  }

  bool empty() const { return blocks_.load(std::memory_order_relaxed) == 0; }

  // Returns the oldest fences of up to `most_streams` streams, at most `most` of each, grouped by
  // stream. The first stream is the one after `last`, so that streams take turns.
  std::vector<Fence> oldest(std::size_t most, std::size_t most_streams,
                            const DeviceStream& last) const {
    std::vector<Fence> fences;
    auto at = streams_.upper_bound(last);
    for (std::size_t left = std::min(most_streams, streams_.size()); left != 0; --left, ++at) {
      if (at == streams_.end()) at = streams_.begin();
      for (std::size_t i = 0; i < at->second.size() && i < most; ++i) {
        fences.push_back({at->first, at->second[i].event});
      }
    }
    return fences;
  }
  std::size_t streams() const { return streams_.size(); }
  // Returns the newest fence of each stream.
  std::vector<Fence> newest() const {
    std::vector<Fence> fences;
    for (const auto& [stream, queue] : streams_) fences.push_back({stream, queue.back().event});
    return fences;
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [stream, queue] : streams_) {
      for (const Waiting& waiting : queue) visit(Fence{stream, waiting.event});
    }
  }

  template <class Visit>
  void each_block(Visit visit) const {
    for (const auto& [block, fences] : left_) visit(*block);
  }

  // Removes the stream's oldest fence. Returns its block if no other fence is left, else nullptr.
  Block* take_oldest(DeviceStream stream) {
    auto found = streams_.find(stream);
    Block* block = found->second.front().block;
    found->second.pop_front();
    if (found->second.empty()) streams_.erase(found);
    auto left = left_.find(block);
    if (--left->second != 0) return nullptr;
    left_.erase(left);
    blocks_.store(left_.size(), std::memory_order_relaxed);
    return block;
  }

 private:
  struct Waiting {
    Block* block = nullptr;
    EventHandle event = nullptr;
  };
  std::map<DeviceStream, std::deque<Waiting>> streams_;  // empty queues are removed
  std::unordered_map<const Block*, std::size_t> left_;   // number of fences of each block
  std::atomic<std::size_t> blocks_{0};                   // number of blocks in left_
};

}  // namespace uvm
