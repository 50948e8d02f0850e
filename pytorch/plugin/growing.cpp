// Memory of a device that grows in place, for Python's Growing (uvmalloc/growing.py): a range of
// addresses for the most bytes, of which only the first bytes are backed by memory. Thread-safe.
// The tensors that whole() has returned keep the memory alive.
#include "pytorch/plugin/growing.hpp"

#include <cstdint>
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

class GrowingMemory;

// The ranges by their addresses. Locked before a range's own mutex.
struct Ranges {
  std::mutex mutex;
  std::map<const void*, GrowingMemory*> by_address;
};

Ranges& ranges() {
  static auto* const all = new Ranges;  // never destroyed: tensors live until exit
  return *all;
}

[[noreturn]] void raise_out_of_memory(std::size_t size_bytes, const char* why) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(Facade::kDevice, size_bytes), " ",
                   why);
}

class GrowingMemory final : public torch::CustomClassHolder {
 public:
  GrowingMemory(std::int64_t most_bytes, std::int64_t device)
      : device_(static_cast<int>(device)),
        most_bytes_(round_up(static_cast<std::size_t>(most_bytes), kPageBytes)),
        addresses_(allocator().engine()),
        base_(reserve()),
        group_(group_for(Facade::kDevice)) {
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    all.by_address.emplace(base_, this);
  }

  ~GrowingMemory() override {
    if (allocator().inspection().in_forked_child()) return;
    {
      Ranges& all = ranges();
      const std::lock_guard lock(all.mutex);
      all.by_address.erase(base_);
    }
    shrink(0);
    addresses_.release(base_);
  }

  void join(GroupNumber group) {
    const std::lock_guard lock(mutex_);
    group_ = group;
    const char* at = base_;
    for (const std::size_t size_bytes : blocks_) {
      group == GroupNumber{} ? groups().remove(at) : groups().add(group, at);
      at += size_bytes;
    }
  }

  // Backs the first `size_bytes`, rounded up to 2 MiB, and gives later blocks back.
  void resize(std::int64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t wanted = round_up(static_cast<std::size_t>(size_bytes), kPageBytes);
    TORCH_CHECK_VALUE(size_bytes >= 0 && wanted <= most_bytes_, "growing: ", size_bytes,
                      " bytes; accepted: at most ", most_bytes_);
    const std::size_t before = held_bytes_;
    try {
      while (held_bytes_ < wanted) grow_to(wanted);
    } catch (...) {
      shrink(before);
      throw;
    }
    shrink(wanted);
  }

  std::int64_t held_bytes() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(held_bytes_);
  }

  // Returns a tensor over the first `size_bytes`, which must be backed.
  static at::Tensor first(const c10::intrusive_ptr<GrowingMemory>& self, std::int64_t size_bytes) {
    const auto device = static_cast<c10::DeviceIndex>(self->device_);
    const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device);
    return at::from_blob(
        self->base_, {size_bytes}, [self](void*) {}, options);
  }

 private:
  char* reserve() {
    try {
      return addresses_.reserve(device_, most_bytes_);
    } catch (const uvm::OutOfMemoryError& error) {
      raise_out_of_memory(most_bytes_, error.what());
    } catch (const std::bad_alloc&) {
      raise_out_of_memory(most_bytes_, "The address space has no free range of this size.");
    }
  }

  void grow_to(std::size_t wanted) {
    const std::size_t size_bytes = std::min(wanted - held_bytes_, kMostBlockBytes);
    blocks_.reserve(blocks_.size() + 1);
    try {
      addresses_.promise(device_, size_bytes);
      try {
        addresses_.place(device_, base_ + held_bytes_, size_bytes);
      } catch (...) {
        addresses_.withdraw(device_, size_bytes);
        throw;
      }
    } catch (const uvm::OutOfMemoryError& error) {
      raise_out_of_memory(size_bytes, error.what());
    }
    if (group_ != GroupNumber{}) groups().add(group_, base_ + held_bytes_);
    blocks_.push_back(size_bytes);
    held_bytes_ += size_bytes;
  }

  void shrink(std::size_t wanted) {
    while (!blocks_.empty() && held_bytes_ - blocks_.back() >= wanted) {
      held_bytes_ -= blocks_.back();
      addresses_.remove(base_ + held_bytes_);
      blocks_.pop_back();
    }
  }

  const int device_;
  const std::size_t most_bytes_;
  ReservedAddresses addresses_;
  char* const base_;
  std::mutex mutex_;                 // guards the members below
  std::vector<std::size_t> blocks_;  // sizes of the blocks, in the order of addresses
  std::size_t held_bytes_ = 0;
  GroupNumber group_{};  // the group of all blocks; 0: none
};

}  // namespace

bool join_growing_memory(const void* address, GroupNumber group) {
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_address.find(address);
  if (found == all.by_address.end()) return false;
  found->second->join(group);
  return true;
}

}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  using uvm::torch_plugin::GrowingMemory;
  using Memory = c10::intrusive_ptr<GrowingMemory>;
  library.class_<GrowingMemory>("GrowingMemory")
      .def(torch::init<std::int64_t, std::int64_t>())
      .def("resize", [](const Memory& memory, std::int64_t bytes) { memory->resize(bytes); })
      .def("held_bytes", [](const Memory& memory) { return memory->held_bytes(); })
      .def("first", [](const Memory& memory, std::int64_t bytes) {
        return GrowingMemory::first(memory, bytes);
      });
}
