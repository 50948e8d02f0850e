// Holds the blocks that this process's allocator serves to a program's allocation calls of CUDA or
// HIP, if UVMALLOC_CUDA is on. A process has one object, made at the first allocation call and
// never destroyed. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include <uvmalloc/groups.hpp>
#include "preload/call_coverage.hpp"
#include "preload/deferred_frees.hpp"
#include "preload/exclusions.hpp"
#include "preload/policy.hpp"
#include "preload/virtual_memory.hpp"

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::preload {

// Returns whether UVMALLOC_CUDA is on in this process. Creates no allocator.
bool wants_to_serve() noexcept;

// Returns whether UVMALLOC_VIRTUAL_MEMORY is on.
bool serves_virtual_memory() noexcept;

// Returns whether pointer attributes report memory of a served cudaMalloc as device memory
// (UVMALLOC_POINTER_TYPE).
bool calls_memory_devices() noexcept;

class ServedMemory {
 public:
  // Returns nullptr if this process serves no allocation calls. The first call initialises the
  // driver, as any allocation call does.
  static ServedMemory* instance() noexcept;
  // Returns the same object if it exists, else nullptr.
  static ServedMemory* existing() noexcept;
  // Same as existing(), but returns nullptr in a forked child.
  static ServedMemory* existing_here() noexcept;

  enum class Kind : std::uint8_t { kDevice, kManaged, kPinned };
  // The vendor of a call's interface. A call is forwarded if the devices are of the other vendor.
  enum class Vendor : std::uint8_t { kCuda, kHip };
  struct Request {
    Vendor vendor = Vendor::kCuda;
    Kind kind = Kind::kDevice;
    int device = 0;
    std::size_t size_bytes = 0;
    StreamHandle stream = nullptr;  // device memory only
    // True for a stream-ordered call. In a capture it is forwarded: the graph owns the memory.
    bool is_ordered = false;
    const void* context = nullptr;  // the block is freed when this context ends
    const void* caller = nullptr;   // return address of the call
  };
  // Puts a block into `*out` and returns kServed. Any other outcome says why there is no block.
  Outcome allocate(const Request& request, void** out) noexcept;

  enum class Freed : std::uint8_t {
    kYes,
    kNotOurs,  // the real free decides
    kNoBlock,  // in uvmalloc's memory, but not the start of a block that this call may free
  };
  // The kinds of memory that a call frees.
  enum class Frees : std::uint8_t { kAll, kPinned, kAllButPinned };
  // Like cudaFree: earlier work of any stream may still use the block.
  Freed free(void* address, Frees frees = Frees::kAll) noexcept;
  // Like cudaFreeAsync: the block is free after the stream's earlier work.
  Freed free_async(void* address, int device, StreamHandle stream) noexcept;

  // Call after the context was destroyed. Frees the blocks that the program allocated in it.
  void free_all_of(const void* context) noexcept;
  // Call after the device was reset, with the `lost` blocks, which were destroyed. Frees the
  // program's other blocks of the device.
  void forget_device(int device, const std::vector<void*>& lost);

  // Returns whether calls of this vendor's interface are served in this process.
  bool serves(Vendor vendor) const noexcept;
  bool excludes_caller(const void* caller) const noexcept {
    return exclusions_.excludes_caller(caller);
  }
  // Prints a line at the first served call. Prints nothing at process start, because no call of a
  // program that uses only another vendor's devices is served.
  void say_that_it_serves() const noexcept;
  VirtualMemory& virtual_memory() { return virtual_memory_; }

  // Calls `wait`, the program's own wait for the device, then frees blocks deferred before that.
  void free_after(int device, const DeferredFrees::Wait& wait) noexcept;

  struct Range {
    void* base = nullptr;
    std::size_t size_bytes = 0;  // the requested size
    Kind kind = Kind::kDevice;
    // For virtual memory management: the mapping that contains the address, and its device.
    std::optional<VirtualMemory::Found> mapped = {};
  };
  // Finds the served block, or the adjacent mappings, that contain `address`. Returns false if
  // there is neither.
  bool find(const void* address, Range* out) const noexcept;
  // Returns whether `base` is the start of a block that the program allocated as managed memory.
  bool is_placed_by_program(const void* base) const noexcept;

 private:
  explicit ServedMemory(CachingManagedAllocator& allocator);
  static ServedMemory* make();

  struct Block {
    std::size_t size_bytes = 0;
    StreamHandle stream = nullptr;
    const void* context = nullptr;
    int device = 0;
    Kind kind = Kind::kDevice;
  };
  // Holds blocks by address.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    std::unordered_map<const void*, Block> blocks;
  };

  Shard& shard_of(const void* address) const;
  // Removes the block from its shard.
  Freed take(const void* address, Frees frees, Block* out) noexcept;
  bool is_capturing(const Request& request) const noexcept;
  void* take_block(const Request& request);
  // Frees the block after a wait for the device, if there is no host memory to defer the free.
  void free_after_wait(void* address, int device) noexcept;
  // Undoes advice that the program may have given for its managed memory.
  void forget_advice(void* address, const Block& block) noexcept;

  CachingManagedAllocator& allocator_;
  const Vendor vendor_;
  const GroupNumber group_;  // of device and managed memory; 0: none
  std::vector<std::string> exclusion_errors_;
  Exclusions exclusions_;
  DeferredFrees deferred_;
  VirtualMemory virtual_memory_;
  mutable std::array<Shard, policy::kBlockShards> shards_;
};

}  // namespace uvm::preload
