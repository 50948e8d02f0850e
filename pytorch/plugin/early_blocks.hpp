// The malloc blocks of large CPU tensors that were allocated before CPU tensors could be managed. A
// block becomes managed at the first move of its tensor (conversion.hpp), unless a raw pointer to
// the block has left torch. Any thread may call; an internal lock is held for a few instructions.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>

namespace uvm::torch_plugin {

class EarlyBlocks {
 public:
  static EarlyBlocks& instance();

  // Costs one load.
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Throws std::bad_alloc; the block is then not recorded.
  void add(void* address, std::size_t size_bytes);
  // Call it before the block is freed. Does nothing for an unknown block.
  void remove(void* address);

  // Whether `pointer` is in one of the blocks.
  bool contains(const void* pointer);
  // Records that a raw pointer to the block around `pointer` has left torch. Returns false if
  // `pointer` is in no block.
  bool mark_exported(const void* pointer);
  // Returns the size of the block that starts at `address`, or 0 if the block is unknown or a raw
  // pointer to it has left torch.
  std::size_t convertible_bytes(const void* address);
  bool is_exported(const void* address);

  // Call lock() before a fork and unlock() after it: the child still uses the blocks.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct EarlyBlock {
    std::size_t size_bytes = 0;
    bool exported = false;
  };
  std::map<const char*, EarlyBlock>::iterator find(const void* pointer);

  std::atomic<std::size_t> count_ = 0;
  std::mutex mutex_;  // guards the members below
  std::map<const char*, EarlyBlock> blocks_;
};

}  // namespace uvm::torch_plugin
