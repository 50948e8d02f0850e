// Reserved addresses of a device, of which only parts are backed by memory. For tensors that grow
// in place (uvmalloc/growing.py) and for storage plans (uvmalloc/pipelines/plan_arena.py).
// Thread-safe. The tensors that first() has returned keep the memory alive.
#include "pytorch/plugin/reserved_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "allocator/engine/reserved_addresses.hpp"
#include "allocator/process/process_allocator.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/out_of_memory.hpp"
#include "pytorch/plugin/region.hpp"

namespace uvm::torch_plugin {
namespace {

// A block is removed only as a whole, so shorter blocks give memory back sooner.
constexpr std::size_t kMostBlockBytes = 16 * kPageBytes;

class ReservedMemory;

// The ranges by their addresses. Locked before a range's own mutex.
struct Ranges {
  std::mutex mutex;
  std::map<const void*, ReservedMemory*> by_address;
};

Ranges& ranges() {
  static auto* const all = new Ranges;  // never destroyed: tensors live until exit
  return *all;
}

[[noreturn]] void raise_out_of_memory(std::size_t size_bytes, const char* why) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(Facade::kDevice, size_bytes), " ",
                   why);
}

class ReservedMemory final : public torch::CustomClassHolder {
 public:
  ReservedMemory(std::int64_t most_bytes, std::int64_t device)
      : device_(static_cast<int>(device)),
        most_bytes_(round_up(static_cast<std::size_t>(most_bytes), kPageBytes)),
        addresses_(allocator().engine()),
        base_(reserve()),
        group_(group_for(Facade::kDevice)) {
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    all.by_address.emplace(base_, this);
  }

  ~ReservedMemory() override {
    if (allocator().inspection().in_forked_child()) return;
    {
      Ranges& all = ranges();
      const std::lock_guard lock(all.mutex);
      all.by_address.erase(base_);
    }
    remove_from(0);
    addresses_.release(base_);
  }

  void join(GroupNumber group) {
    const std::lock_guard lock(mutex_);
    group_ = group;
    for (const auto& [first, end] : blocks_) {
      const char* block = base_ + first;
      group == GroupNumber{} ? groups().remove(block) : groups().add(group, block);
    }
  }

  // Backs the first `size_bytes`, rounded up to 2 MiB, and gives later blocks back.
  void resize(std::int64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    back_pages(0, size_bytes);
    remove_from(round_up(static_cast<std::size_t>(size_bytes), kPageBytes));
  }

  // Backs the pages of 2 MiB of these bytes. If memory is short, backs none of them.
  void back(std::int64_t first, std::int64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    back_pages(first, size_bytes);
  }

  std::int64_t held_bytes() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(held_bytes_);
  }

  // Returns a tensor over the first `size_bytes`. Its elements may be used where memory backs them.
  static at::Tensor first(const c10::intrusive_ptr<ReservedMemory>& self, std::int64_t size_bytes) {
    const auto device = static_cast<c10::DeviceIndex>(self->device_);
    const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device);
    return at::from_blob(
        self->base_, {size_bytes}, [self](void*) {}, options);
  }

 private:
  using Blocks = std::map<std::size_t, std::size_t>;  // offsets of the first byte and the end

  char* reserve() {
    try {
      return addresses_.reserve(device_, most_bytes_);
    } catch (const uvm::OutOfMemoryError& error) {
      raise_out_of_memory(most_bytes_, error.what());
    } catch (const std::bad_alloc&) {
      raise_out_of_memory(most_bytes_, "The address space has no free range of this size.");
    }
  }

  void back_pages(std::int64_t first, std::int64_t size_bytes) {
    const auto most = static_cast<std::int64_t>(most_bytes_);
    TORCH_CHECK_VALUE(first >= 0 && size_bytes >= 0 && first <= most && size_bytes <= most - first,
                      "reserved memory: ", size_bytes, " bytes from ", first,
                      "; accepted: at most ", most_bytes_, " in all");
    std::size_t at = static_cast<std::size_t>(first) / kPageBytes * kPageBytes;
    const std::size_t end = round_up(static_cast<std::size_t>(first + size_bytes), kPageBytes);
    std::vector<std::size_t> added;
    try {
      while (at < end) {
        const auto next = blocks_.upper_bound(at);
        if (next != blocks_.begin() && std::prev(next)->second > at) {
          at = std::prev(next)->second;
          continue;
        }
        const std::size_t gap_end = next == blocks_.end() ? end : std::min(end, next->first);
        const std::size_t block_end = std::min(gap_end, at + kMostBlockBytes);
        added.push_back(at);
        add_block(at, block_end);
        at = block_end;
      }
    } catch (...) {
      for (const std::size_t begin : added) remove_block(blocks_.find(begin));
      throw;
    }
  }

  void add_block(std::size_t first, std::size_t end) {
    const std::size_t size_bytes = end - first;
    const auto block = blocks_.emplace(first, end).first;
    try {
      addresses_.promise(device_, size_bytes);
      try {
        addresses_.place(device_, base_ + first, size_bytes);
      } catch (...) {
        addresses_.withdraw(device_, size_bytes);
        throw;
      }
    } catch (const uvm::OutOfMemoryError& error) {
      blocks_.erase(block);
      raise_out_of_memory(size_bytes, error.what());
    } catch (...) {
      blocks_.erase(block);
      throw;
    }
    held_bytes_ += size_bytes;
    if (group_ != GroupNumber{}) groups().add(group_, base_ + first);
  }

  void remove_block(Blocks::iterator block) noexcept {
    if (block == blocks_.end()) return;
    addresses_.remove(base_ + block->first);
    held_bytes_ -= block->second - block->first;
    blocks_.erase(block);
  }

  // Removes the blocks that begin there or later.
  void remove_from(std::size_t first) noexcept {
    while (!blocks_.empty() && std::prev(blocks_.end())->first >= first) {
      remove_block(std::prev(blocks_.end()));
    }
  }

  const int device_;
  const std::size_t most_bytes_;
  ReservedAddresses addresses_;
  char* const base_;
  std::mutex mutex_;  // guards the members below
  Blocks blocks_;
  std::size_t held_bytes_ = 0;
  GroupNumber group_{};  // the group of all blocks; 0: none
};

}  // namespace

bool join_reserved_memory(const void* address, GroupNumber group) {
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_address.find(address);
  if (found == all.by_address.end()) return false;
  found->second->join(group);
  return true;
}

}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  using uvm::torch_plugin::ReservedMemory;
  using Memory = c10::intrusive_ptr<ReservedMemory>;
  library.class_<ReservedMemory>("ReservedMemory")
      .def(torch::init<std::int64_t, std::int64_t>())
      .def("resize", [](const Memory& memory, std::int64_t bytes) { memory->resize(bytes); })
      .def("back", [](const Memory& memory, std::int64_t first,
                      std::int64_t bytes) { memory->back(first, bytes); })
      .def("held_bytes", [](const Memory& memory) { return memory->held_bytes(); })
      .def("first", [](const Memory& memory, std::int64_t bytes) {
        return ReservedMemory::first(memory, bytes);
      });
}
