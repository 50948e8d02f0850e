// The functions that a framework's plugin calls, and the framework's settings in this process. No
// other part of the allocator deals with frameworks and their tensors. All functions are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/statistics.hpp>
#include "allocator/memory_observer.hpp"

namespace uvm {

class FrameworkBridge {
 public:
  explicit FrameworkBridge(CachingManagedAllocator& allocator) : allocator_(&allocator) {}

  // Marks a block whose pointer went to code that cannot be followed (numpy, DLPack, data_ptr()).
  // Tensors that may write must not share it. Returns false if `address` is in no live block.
  bool mark_exported(const void* address);
  // Marks all live blocks that could be shared, as mark_exported() does. Called when a graph is
  // captured, because its replays use the addresses of these blocks.
  void mark_live_exported();

  // Sets whether the program sees the block as page-locked memory on the host. By default only
  // pinned blocks are; freeing the block restores the default. Call this if a pinned block passes
  // to a pageable tensor, or the reverse. Does nothing if `address` is in no live block.
  void set_pinned(const void* address, bool pinned);

  // Records that only devices use the block that holds `address`, until it moves to the host. A
  // forked child gets no copy of the block. Does nothing if `address` is in no live block.
  void note_left_host(const void* address);

  // Records that the block that holds `address` is used only at these places. For callers that move
  // blocks with MoveRequest::keeps_source. Returns false if nothing has changed: the places were
  // already recorded, `address` is in no live block, or the block would have no use left.
  bool note_places(const void* address, PlaceSet places);
  // Undoes note_places() for one place: the block is used there again.
  void note_place_again(const void* address, Place place);
  // Sets a function that is called before figures are read, without locks. It calls note_places()
  // to report uses that ended without a call. Set it before other threads use the allocator.
  void set_places_source(std::function<void()> source);

  // Returns a host block for a conversion. The caller copies other memory of this process into the
  // block and frees that memory piece by piece, so the bytes never take memory twice. An automatic
  // budget grows by the block's size, because it excluded the other memory. Throws the same
  // exceptions as allocate().
  void* allocate_for_conversion(int device, std::size_t size_bytes);

  // Counts a move that copied `size_bytes` bytes, by its reason.
  void note_copy(CopyReason reason, std::size_t size_bytes);
  // Counts a first write to a shared block. The write copied bytes or, if `steal`, took over the
  // block.
  void note_materialization(std::size_t copied_bytes, bool steal);

  // Sets the observer, which must outlive its use here; nullptr removes it.
  void set_memory_observer(MemoryObserver* observer);

  // Sets the function that detects whether the program searches for the largest batch
  // (UVMALLOC_SPILL). `find` is called rarely and without locks, on threads that allocate or use
  // memory. It must not call the allocator.
  void set_search_signs(std::function<SearchSign()> find);

 private:
  Engine& engine() const { return allocator_->engine(); }

  CachingManagedAllocator* allocator_;
};

// ---- settings of this process

// Returns whether CPU tensors are managed from the start, which may initialise the driver. True if
// UVMALLOC_CPU says so, or if the program itself has switched unified memory on.
bool manages_cpu_tensors_at_once();
void set_manages_cpu_tensors_at_once() noexcept;

// The kind of host memory that a framework gets on this thread; initially kManaged.
// set_host_memory() returns the previous value.
enum class HostMemory : unsigned char {
  kMalloc,         // from malloc: for memory that never goes to a device
  kManaged,        // managed from UVMALLOC_HOST_THRESHOLD on
  kAlwaysManaged,  // managed, whatever its size
};
HostMemory set_host_memory(HostMemory memory) noexcept;
HostMemory host_memory() noexcept;

// Returns the value of UVMALLOC_MOVE, or the default if there is no memory to read the variable.
MoveMode configured_move_mode() noexcept;
// Sets how a framework's tensors move. Before the first call, configured_move_mode() decides.
void set_move_mode(MoveMode mode) noexcept;
// Returns the mode of this process, or kAlias while set_thread_aliases(true) holds on this thread.
MoveMode move_mode() noexcept;
// Sets whether moves on this thread use MoveMode::kAlias. Returns the previous value.
bool set_thread_aliases(bool aliases) noexcept;

// Returns whether a framework's memory is managed: its plugin has replaced the framework's
// allocators, and there is a device. Initialises nothing. Before the program has initialised the
// driver, a driver on this machine counts as a device.
bool is_plugin_enabled();
// Returns whether the plugin is installed. The plugin sets this.
bool is_plugin_installed() noexcept;
void set_plugin_installed(bool installed) noexcept;

// Returns whether this process contains a framework whose plugin is installed, may still be loaded,
// or is switched off. If so, UVMALLOC_CUDA=auto forwards the program's CUDA allocation calls to
// CUDA.
bool has_framework() noexcept;
void note_framework() noexcept;
// Returns whether no plugin fits the framework of this process, so that the framework's own
// allocation calls are served instead. One line on stderr has said so.
bool is_framework_without_plugin() noexcept;
void note_framework_without_plugin() noexcept;

// Allocations that the framework's own allocators served, although the plugin had replaced them.
// Only the framework's plugin can count them.
struct NativeAllocations {
  std::uint64_t device = 0;
  std::uint64_t pinned = 0;
  std::uint64_t host = 0;
};
void set_native_allocations(std::function<NativeAllocations()> source);

}  // namespace uvm
