// The allocator behind three kinds of memory: host, pinned and device. It serves blocks of managed
// memory from pools. Each memory kind, device and stream has its own pools. Host blocks may be in
// ordinary memory instead (Configuration::host_backing). It has two storage records for each block,
// plans where pages should be, and fences freed blocks that streams still use.
//
// Thread-safe. If the thread's cache can serve an allocation or a free, no lock is taken and the
// driver is not called. engine/engine.hpp lists the locks and the parts.
//
// When freed memory is used again:
//  * Device memory: at once for requests of its own stream; for requests of other streams after the
//    work of every other stream that used the memory (record_use).
//  * Host and pinned memory: after the work of every device stream that used it, even if the same
//    caller requests it, because the host would write at once.
//  * If a block has moved, it is free at the place where its pages are. The pool that owns the
//    block takes the block back before the pool touches new pages.
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
  // Takes ownership of the runtime. The allocator also keeps its figures in `figures_file`, so that
  // the figures survive any end of the process; if the name is empty, there is no file. Throws
  // std::runtime_error with a message of one line if there is no device, or if managed memory of a
  // device does not migrate to its users. Throws std::invalid_argument if budget_bytes or
  // device_budget_bytes is below 2 MiB, the size of a page.
  CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                          const Configuration& configuration, const std::string& figures_file = {});

  // Frees all spans, even those in use. The process-wide instance is never destroyed, because exit
  // handlers may still free its blocks.
  ~CachingManagedAllocator();

  CachingManagedAllocator(const CachingManagedAllocator&) = delete;
  CachingManagedAllocator& operator=(const CachingManagedAllocator&) = delete;

  // Returns a block of `size_bytes` bytes for use on `stream` of `device`, or nullptr for 0 bytes.
  // Host and pinned blocks belong to no stream; `device` will access them. Contents are undefined.
  //
  // The address is aligned to 512 bytes. Pinned blocks above 4 KiB are aligned to 4 KiB. Host and
  // pinned blocks from 1 MiB on are aligned to 2 MiB.
  //
  // Throws OutOfMemoryError if memory runs out, std::invalid_argument if the device does not exist,
  // and std::runtime_error if the driver fails otherwise. In a forked child malloc serves host and
  // pinned requests; device requests throw std::runtime_error (Inspection::in_forked_child).
  void* allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream = nullptr);
  // Same as allocate(), aligned to `alignment_bytes`, which must be a power of two up to 2 MiB; any
  // other value throws std::invalid_argument. Above 512 bytes, a small host or pinned block takes a
  // whole 2 MiB page, and a forked child gets std::runtime_error.
  void* allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                         std::size_t alignment_bytes, StreamHandle stream);

  // Frees the block that starts at `address`, and all its indirect records. `address` may be
  // nullptr. If the result is kDouble or kInterior, a line in the log describes the address.
  FreeResult free(void* address) noexcept;

  // Records that `stream` of `device` works on the block. After the block's free, its memory is not
  // used again before that work is over. Returns false if `address` is in no live block.
  //
  // This function and all functions below throw std::out_of_range if the device does not exist,
  // unless they are noexcept or say otherwise.
  bool record_use(const void* address, int device, StreamHandle stream);
  bool record_use(const void* address, const DeviceStream& stream);

  // Moves a block, or a part of it, without copying: adds an indirect record for the destination,
  // advises whole segments, and prefetches on one of uvmalloc's own streams. Returns the record,
  // which is valid until release() or the block's free. Returns nullptr if `address` is in no live
  // block, or if the block already has kMostReferences records (RealStorage).
  //
  // If the call waits, it may throw what Streams::wait_for_uses() throws. Throws OutOfMemoryError
  // if the device's limit has no room for the block, and std::bad_alloc if there is no memory for
  // the record. After an error the block has not moved, but the stream that wrote the block counts
  // as a user.
  MovedStorage* move(void* address, const MoveRequest& move);

  // Prefetches the 2 MiB pages that the range touches to `destination`. The block is not moved: it
  // counts as used where it was. For a prefetch to a device, `stream` belongs to that device and
  // waits for the prefetch. For a prefetch to the host, `stream` belongs to the device that uses
  // the bytes, and the prefetch waits for `stream`. Returns false if the range is not inside one
  // live block. Skips pages that are already at the destination or do not fit there, and all pages
  // if the policy sends no prefetches.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);

  // Advises the driver on the whole pages of the block that holds `address`: the preferred place, a
  // place that keeps the pages mapped, and whether readers keep copies. The first two last until
  // the next advice or, for a page-granular block, until the next move. A move does not end the
  // third.
  //
  // The advice splits the driver's range for good, so use it only for a few blocks whose use the
  // program knows better. Unset the advice before the free, because the next user of the pages
  // inherits it. Returns false if the address is in no live block, or if the block covers no whole
  // page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Removes one indirect record. If it was the block's last record, frees the block.
  void release(MovedStorage* record) noexcept;

  // Describes the block that holds `address`, at its start or inside; nullopt if there is no block.
  std::optional<BlockDescription> find(const void* address) const;

  // Gives all cached memory back: free pages to their spans, and empty spans to the driver. Spans
  // discard free pages if the device can. Waits for the fences of freed blocks.
  void release_cached();
  // Same as release_cached(), for one memory kind.
  void release_cached_of(Facade facade);

  // Returns a snapshot of all figures. Allocations and frees of other threads wait meanwhile.
  Statistics statistics() const;
  // Restart the peaks, or the totals, of that memory kind on that device. Other threads wait too.
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);

  // The allocator's other functions, by topic. To call them, include the header named after the
  // class. Each returned value refers to the allocator, which must outlive the value.
  inline Streams streams() const;             // streams, captures and contexts of the program
  inline PrivatePools private_pools() const;  // memory that serves only some streams
  inline KernelUses kernel_uses() const;      // what kernels use, for planning
  inline Limits limits() const;               // budgets, and what happens when memory is short
  inline Tracing tracing() const;
  inline Inspection inspection() const;
  // The parts of the allocator, for code of this project.
  Engine& engine() const { return *engine_; }

 private:
  const std::unique_ptr<Engine> engine_;
  const bool wants_call_sites_;
};

}  // namespace uvm
