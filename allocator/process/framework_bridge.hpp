// What a framework's plugin tells the allocator, and the switches of a framework in this process.
// Nothing else in the allocator knows frameworks and their tensors. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/statistics.hpp>
#include "allocator/memory_observer.hpp"
#include "allocator/process/framework_bridge.hpp"

namespace uvm {

class FrameworkBridge {
 public:
  explicit FrameworkBridge(CachingManagedAllocator& allocator) : allocator_(&allocator) {}

  // Marks a block whose raw pointer has left to code that cannot be followed (numpy, DLPack,
  // data_ptr()). Tensors that may write must not share such a block. Returns false if the address
  // is in no live block.
  bool mark_exported(const void* address);
  // As mark_exported(), for all live blocks that could be shared: a graph is captured, and its
  // replays use their addresses.
  void mark_live_exported();

  // Sets whether the program sees the block's use on the host as page-locked memory. The default
  // holds again after the block's free: only pinned blocks are. Call it if the only user on the
  // host is not the one that the block was made for. Does nothing if `address` is in no live block.
  void set_pinned(const void* address, bool pinned);

  // Records that only devices use the block that holds `address`, until it moves to the host: a
  // forked child gets no copy of it. Does nothing if `address` is in no live block.
  void note_left_host(const void* address);

  // Records that the block that holds `address` is used at these places alone. For a caller whose
  // moves keep their source. Returns false if nothing has changed: that was known, `address` is in
  // no live block, or no use would be left.
  bool note_places(const void* address, PlaceSet places);
  // Undoes a note_places(): the block is again used at that place too, as before.
  void note_place_again(const void* address, Place place);
  // Sets a function that is called before figures are read, without locks. An owner whose uses end
  // without a call reports them there by note_places(). Set it before other threads use the
  // allocator.
  void set_places_source(std::function<void()> source);

  // Returns a host block for bytes in other memory of this process. The caller copies them and
  // returns the other memory piece by piece, so they never take memory twice. An automatic budget
  // grows by the block, because that memory did not count as available. Throws as allocate().
  void* allocate_for_conversion(int device, std::size_t size_bytes);

  // Counts a move that copied `size_bytes` bytes, and its reason.
  void note_copy(CopyReason reason, std::size_t size_bytes);
  // Counts a first write to a shared block: it copied bytes, or took the block over (`steal`).
  void note_materialization(std::size_t copied_bytes, bool steal);

  // Sets the observer, which must outlive its use; nullptr: none.
  void set_memory_observer(MemoryObserver* observer);

  // `find` returns whether the program searches for the largest batch (UVMALLOC_SPILL). It is
  // called without locks, seldom, on threads that allocate or use memory. It must not call the
  // allocator.
  void set_search_signs(std::function<SearchSign()> find);

 private:
  Engine& engine() const { return allocator_->engine(); }

  CachingManagedAllocator* allocator_;
};

// ---- switches of this process

// Whether CPU tensors are managed at once, which may initialise the driver: because UVMALLOC_CPU
// says so, or the program has switched unified memory on itself.
bool manages_cpu_tensors_at_once();
void set_manages_cpu_tensors_at_once() noexcept;

// The host memory that a framework gets on this thread; kManaged until set. The setter returns the
// previous value.
enum class HostMemory : unsigned char {
  kMalloc,         // from malloc: for memory that never goes to a device
  kManaged,        // managed from UVMALLOC_HOST_THRESHOLD on
  kAlwaysManaged,  // managed, whatever its size
};
HostMemory set_host_memory(HostMemory memory) noexcept;
HostMemory host_memory() noexcept;

// UVMALLOC_MOVE; the default if there is no memory to read it.
MoveMode configured_move_mode() noexcept;
// Sets how a framework's tensors move; until then as configured.
void set_move_mode(MoveMode mode) noexcept;
// The mode of this process, or kAlias if this thread has set it.
MoveMode move_mode() noexcept;
// Returns the previous value.
bool set_thread_aliases(bool aliases) noexcept;

// Whether a framework's memory is managed: its plugin has replaced the framework's allocators, and
// there is a device. Initialises nothing: before the program has initialised the driver, true if
// this machine has one.
bool is_framework_enabled();
// Whether the plugin is installed. The plugin sets it.
bool is_framework_installed() noexcept;
void set_framework_installed(bool installed) noexcept;

// Whether a framework is in this process, with or without a plugin. It then makes the calls of CUDA
// that it always makes.
bool has_framework() noexcept;
void note_framework() noexcept;

// Allocations that a framework's own allocators served although they were replaced. Only the
// framework's plugin can count them.
struct NativeAllocations {
  std::uint64_t device = 0;
  std::uint64_t pinned = 0;
  std::uint64_t host = 0;
};
void set_native_allocations(std::function<NativeAllocations()> source);

}  // namespace uvm
