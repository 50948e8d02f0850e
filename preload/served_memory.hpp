// The memory of programs that call CUDA's allocation functions: served by this process's allocator
// where UVMALLOC_CUDA asks for it. One object a process, made at the first allocation call and
// never destroyed. Thread-safe. No function of it throws or needs the caller's locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include "preload/call_coverage.hpp"
#include "preload/deferred_frees.hpp"
#include "preload/exclusions.hpp"

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::preload {

// Whether UVMALLOC_CUDA asks for it in this process; makes nothing.
bool wants_to_serve() noexcept;

// Whether pointer attributes call a served cudaMalloc's memory device memory
// (UVMALLOC_POINTER_TYPE).
bool calls_memory_devices() noexcept;

class ServedMemory {
 public:
  // nullptr: allocation calls are not served here. The first call initialises the driver, as any
  // allocation call does.
  static ServedMemory* instance() noexcept;
  // The same where it is there already.
  static ServedMemory* existing() noexcept;

  // The kind of memory that a program asked for.
  enum class Kind : std::uint8_t { kDevice, kManaged, kPinned };
  // Whose interface a call belongs to. Calls of the other vendor than the devices' are left.
  enum class Vendor : std::uint8_t { kCuda, kHip };
  struct Request {
    Vendor vendor = Vendor::kCuda;
    Kind kind = Kind::kDevice;
    int device = 0;
    std::size_t size_bytes = 0;
    StreamHandle stream = nullptr;  // device memory only
    // A call in the order of the stream. While the stream captures, it makes memory of the graph.
    bool is_ordered = false;
    const void* context = nullptr;  // whose end frees the block
    const void* caller = nullptr;   // code that called
  };
  // A block for the request in `*out`. Otherwise the outcome says why there is none.
  Outcome allocate(const Request& request, void** out) noexcept;

  enum class Freed : std::uint8_t {
    kYes,
    kNotOurs,  // CUDA is to say
    kNoBlock,  // in our memory, and no live block that this call frees begins there
  };
  // Which kinds of memory a call frees.
  enum class Frees : std::uint8_t { kAll, kPinned, kAllButPinned };
  // As cudaFree: work of any stream that was given before may still use the block.
  Freed free(void* address, Frees frees = Frees::kAll) noexcept;
  // As cudaFreeAsync: the block is free after the stream's work.
  Freed free_async(void* address, int device, StreamHandle stream) noexcept;

  // The context was destroyed, and the program's memory with it.
  void free_all_of(const void* context) noexcept;
  // The device was reset, and the allocator has ended the `lost` blocks. Frees the program's
  // others.
  void forget_device(int device, const std::vector<void*>& lost);

  // Calls `wait`, with which the program waits for the device: blocks from before it are free then.
  void free_after(int device, const DeferredFrees::Wait& wait) noexcept;

  struct Range {
    void* base = nullptr;
    std::size_t size_bytes = 0;  // as asked for
    Kind kind = Kind::kDevice;
  };
  // The block that `address` points into. False: it is no block of ours.
  bool find(const void* address, Range* out) const noexcept;
  // Whether a block of ours begins there that the program asked for as managed memory.
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
  // Blocks by address, apart so that threads seldom meet.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    std::unordered_map<const void*, Block> blocks;
  };
  static constexpr std::size_t kShards = 16;

  Shard& shard_of(const void* address) const;
  // Forgets the block.
  Freed take(const void* address, Frees frees, Block* out) noexcept;
  bool is_capturing(const Request& request) const noexcept;
  void* take_block(const Request& request);
  // For a block that cannot be kept until the device is done: there is no memory to note it.
  void free_after_wait(void* address, int device) noexcept;
  // Takes back the advice that the program may have given for its managed memory.
  void forget_advice(void* address, const Block& block) noexcept;

  CachingManagedAllocator& allocator_;
  const Vendor vendor_;
  std::vector<std::string> exclusion_errors_;
  Exclusions exclusions_;
  DeferredFrees deferred_;
  mutable std::array<Shard, kShards> shards_;
};

}  // namespace uvm::preload
