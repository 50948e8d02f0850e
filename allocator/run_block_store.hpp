// Records of run blocks, named by numbers of four bytes, so that tables of them are small. Records
// are used again and never freed before the store.
//
// Guarded by the allocator's lock, but for at(), which may run beside everything else.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include <uvmalloc/allocator/block.hpp>

namespace uvm {

class RunBlockStore {
 public:
  RunBlockStore() : chunks_(new Chunks{}) {}
  ~RunBlockStore() {
    for (std::size_t chunk = 0; chunk * kChunk <= made_; ++chunk) delete[](*chunks_)[chunk].load();
  }
  RunBlockStore(const RunBlockStore&) = delete;
  RunBlockStore& operator=(const RunBlockStore&) = delete;

  // A record that says of its storage and neighbours what it happens to; its number is its `id`,
  // never 0.
  RunBlock* make() {
    if (free_ != nullptr) {
      RunBlock* block = free_;
      free_ = block->shared.next;
      block->plain = true;
      block->exported = false;
      return block;
    }
    std::uint32_t id = made_ + 1;
    std::size_t chunk = id / kChunk;
    if (chunk == kChunks) throw std::length_error("uvmalloc: too many blocks");
    if ((*chunks_)[chunk].load(std::memory_order_relaxed) == nullptr) {
      (*chunks_)[chunk].store(new RunBlock[kChunk], std::memory_order_release);
    }
    made_ = id;
    RunBlock* block = at(id);
    block->id = id;
    return block;
  }

  void drop(RunBlock* block) {
    block->set(BlockState::kFree);
    block->real.address = nullptr;
    block->shared.next = free_;
    free_ = block;
  }

  RunBlock* at(std::uint32_t id) const {
    return (*chunks_)[id / kChunk].load(std::memory_order_acquire) + id % kChunk;
  }

  std::size_t bytes() const { return (made_ / kChunk + 1) * kChunk * sizeof(RunBlock); }

 private:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kChunks = kBlockKeys / kChunk;
  using Chunks = std::array<std::atomic<RunBlock*>, kChunks>;

  std::unique_ptr<Chunks> chunks_;
  std::uint32_t made_ = 0;
  RunBlock* free_ = nullptr;
};

}  // namespace uvm
