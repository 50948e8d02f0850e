// Memory of the C library that large CPU tensors got before CPU tensors could be managed. It
// becomes managed at the first move of its tensor (conversion.hpp). A block is exempt if a raw
// pointer to it has left torch; this table remembers that. Any thread may call; the lock is
// internal, and held for a few instructions.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>

namespace uvm::torch_plugin {

class EarlyBlocks {
 public:
  static EarlyBlocks& instance();

  // Whether there is none: one load.
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Throws std::bad_alloc; the block is then not known.
  void add(void* address, std::size_t size_bytes);
  // Before the block is freed. Does nothing where it is not known.
  void remove(void* address);

  // Whether `pointer` lies in one of the blocks.
  bool contains(const void* pointer);
  // A raw pointer to the block in which `pointer` lies has left. Returns false where it is in none.
  bool mark_exported(const void* pointer);
  // Bytes of the block that starts at `address`; 0: it is not known, or a raw pointer to it has
  // left.
  std::size_t convertible_bytes(const void* address);
  bool is_exported(const void* address);

  // Around a fork, whose child goes on using the blocks.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct EarlyBlock {
    std::size_t size_bytes = 0;
    bool exported = false;
  };
  std::map<const char*, EarlyBlock>::iterator find(const void* pointer);

  std::atomic<std::size_t> count_ = 0;
  std::mutex mutex_;  // guards the rest
  std::map<const char*, EarlyBlock> blocks_;
};

}  // namespace uvm::torch_plugin
