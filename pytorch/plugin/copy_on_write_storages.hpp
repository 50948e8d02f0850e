// For each block, the storages that share it, or have shared it, copy-on-write. Guarded by
// sharing_mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

namespace uvm::torch_plugin {

class CopyOnWriteStorages {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void add(const void* block, const c10::Storage& storage) {
    if (blocks_.size() >= most_) forget_gone();
    std::vector<Weak>& over = blocks_[block];
    forget_gone(&over);
    watch(block);
    for (const Weak& known : over) {
      if (known._unsafe_get_target() == storage.unsafeGetStorageImpl()) return;
    }
    over.push_back(storage.getWeakStorageImpl());
  }

  // Takes up to `most` blocks off the watched list, oldest first. Storages over them may have been
  // freed since. The caller watches a block again if two storages still share it.
  std::vector<const void*> take_watched(std::size_t most) {
    std::vector<const void*> blocks;
    for (; blocks.size() < most && !watched_.empty(); watched_.pop_front()) {
      is_watched_.erase(watched_.front());
      blocks.push_back(watched_.front());
    }
    return blocks;
  }
  void watch(const void* block) {
    if (is_watched_.insert(block).second) watched_.push_back(block);
  }
  std::size_t watched() const { return watched_.size(); }

  // Returns the storages in the order in which they began to share. They may have other memory now.
  std::vector<Weak> of(const void* block) const {
    const auto found = blocks_.find(block);
    return found == blocks_.end() ? std::vector<Weak>() : found->second;
  }

  std::vector<Weak> all() const {
    std::vector<Weak> out;
    for (const auto& [block, over] : blocks_) out.insert(out.end(), over.begin(), over.end());
    return out;
  }

 private:
  static void forget_gone(std::vector<Weak>* storages) {
    std::erase_if(*storages, [](const Weak& storage) { return storage.expired(); });
  }
  void forget_gone() {
    for (auto& [block, over] : blocks_) forget_gone(&over);
    std::erase_if(blocks_, [](const auto& entry) { return entry.second.empty(); });
    most_ = std::max<std::size_t>(1024, 2 * blocks_.size());
  }

  std::deque<const void*> watched_;
  std::unordered_set<const void*> is_watched_;
  std::size_t most_ = 1024;
  std::unordered_map<const void*, std::vector<Weak>> blocks_;
};

}  // namespace uvm::torch_plugin
