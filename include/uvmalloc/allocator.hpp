// The one allocator behind three kinds of memory: host, pinned and device. It serves blocks of
// managed memory from pools per memory kind, stream and size. Host blocks may be in ordinary memory
// instead (Configuration::host_backing). It keeps a pair of storage records for each block, plans
// where pages should be, and fences freed blocks that streams still use.
//
// Thread-safe. An allocation or free that the thread's cache serves takes no lock and calls no
// driver. engine/engine.hpp lists the locks and the parts.
//
// When freed memory is used again:
//  * Device memory: at once by requests of its own stream; by others after the events
//    of every other stream that used it (record_use).
//  * Host and pinned memory: after the events of every device stream that used it, even
//    for the same caller, because the host would write at once.
//  * A block that has moved is free at the place of its pages. Its own pool takes it back
//    before it touches new pages.
// engine/escalation.hpp lists the steps for a request that finds no free block.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <uvmalloc/errors.hpp>
#include <uvmalloc/types.hpp>

namespace uvm {

class DeviceRuntime;
class Inspection;
class KernelUses;
class Limits;
class PrivatePools;
class Streams;
class Tracing;
struct Configuration;
struct Engine;
struct MovedStorage;
struct Statistics;
struct WantedPlacement;

class CachingManagedAllocator {
 public:
  // Takes ownership of the runtime. `figures_file`: the figures are kept in this file too, so that
  // they survive any end of the process; empty: no file. Throws std::runtime_error, in one line, if
  // there is no device or managed memory of a device does not follow its use. Throws
  // std::invalid_argument if budget_bytes or device_budget_bytes is below 2 MiB, the size of a
  // page.
  CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                          const Configuration& configuration, const std::string& figures_file = {});

  // Frees all spans, in use or not. The process-wide instance is never destroyed, because exit
  // handlers may still free into it.
  ~CachingManagedAllocator();

  CachingManagedAllocator(const CachingManagedAllocator&) = delete;
  CachingManagedAllocator& operator=(const CachingManagedAllocator&) = delete;

  // Returns a block of `size_bytes` bytes for use on `stream` of `device`; 0 bytes: nullptr. Host
  // and pinned blocks belong to no stream; `device` is the one that will access them. Contents are
  // undefined.
  //
  // The address is aligned to 512 bytes, of pinned blocks above 4 KiB to 4 KiB, of host and pinned
  // blocks from 1 MiB on to 2 MiB.
  //
  // Throws OutOfMemoryError. Throws std::invalid_argument if the device does not exist, and
  // std::runtime_error if the driver fails for another reason. In a forked child malloc serves host
  // and pinned requests, and device requests throw std::runtime_error
  // (Inspection::in_forked_child).
  void* allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream = nullptr);
  // As allocate(), aligned to `alignment_bytes`, a power of two up to 2 MiB; any other throws
  // std::invalid_argument. Above 512 bytes a small host or pinned block takes a 2 MiB page of its
  // own, and a forked child gets std::runtime_error.
  void* allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                         std::size_t alignment_bytes, StreamHandle stream);

  // Frees the block that starts at `address`, with all its indirect records. nullptr is allowed. A
  // kDouble or kInterior result is logged with a description of the address.
  FreeResult free(void* address) noexcept;

  // Records that `stream` of `device` works on the block: after its free the block is not used
  // again before that work is over. Returns false if `address` is in no live block.
  //
  // This function and all below throw std::out_of_range if the device does not exist, unless they
  // are noexcept or say otherwise.
  bool record_use(const void* address, int device, StreamHandle stream);
  bool record_use(const void* address, const DeviceStream& stream);

  // Moves a block, or a part of it, without copying: adds an indirect record for the destination,
  // advises whole segments, and prefetches on the I/O lane. Returns the record, which is valid
  // until release() or the block's free. Returns nullptr if `address` is in no live block, or the
  // block has the most records possible (RealStorage::kMostReferences).
  //
  // Throws as Streams::wait_for_uses() if it waits. Throws OutOfMemoryError if the device's limit
  // has no room for the block, and std::bad_alloc without memory for the record. After an error the
  // block has not moved, but its producer counts as a user.
  MovedStorage* move(void* address, const MoveRequest& move);

  // Prefetches the 2 MiB pages that the range touches to `destination`; the block is not moved, and
  // its uses stay. To a device: `stream`, of that device, waits for the prefetch. To the host: the
  // prefetch waits for `stream`, of the device that uses the bytes. Returns false if the range does
  // not lie in one live block. Pages that are there already, or find no room, are left out; a
  // policy without prefetches leaves out all.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);

  // Advises the driver on the whole pages of the block that holds `address`: their preferred place,
  // a place that keeps them mapped, and whether readers keep copies. The first two last until the
  // next advice or, for a page-granular block, the next move; the third lasts over moves.
  //
  // The advice splits the driver's range for good, so it is for the few blocks that a program knows
  // better. Unset it before the free: the next user of the pages inherits it. Returns false if the
  // address is in no live block, or the block covers no whole page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Removes one indirect record. Frees the block with its last one.
  void release(MovedStorage* record) noexcept;

  // Describes the block that holds `address`, which may be interior. nullopt: the address is in no
  // block.
  std::optional<BlockDescription> find(const void* address) const;

  // Gives all cached memory back: free pages to their spans, which discard them if the device can,
  // and empty spans to the driver. Waits for blocks behind fences.
  void release_cached();
  // As release_cached(), for one memory kind.
  void release_cached_of(Facade facade);

  // All figures at one moment. Allocations and frees of other threads wait meanwhile, as for the
  // resets.
  Statistics statistics() const;
  // The peaks, or the totals, of that memory kind on that device begin anew.
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);

  // The allocator's other functions, by topic. Each header has the name of its class; include it to
  // call the function. The values are references to the allocator, which must outlive them.
  inline Streams streams() const;             // streams, captures and contexts of the program
  inline PrivatePools private_pools() const;  // memory that serves some streams alone
  inline KernelUses kernel_uses() const;      // what kernels use, for planning
  inline Limits limits() const;               // budgets, and what happens if memory runs short
  inline Tracing tracing() const;
  inline Inspection inspection() const;
  // The parts, for code of this project.
  Engine& engine() const { return *engine_; }

 private:
  // Only fast_path.cpp defines them, so that a hit in the thread's cache is one function.
  const std::unique_ptr<Engine> engine_;
  const bool wants_call_sites_;
};

}  // namespace uvm
