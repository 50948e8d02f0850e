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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/errors.hpp>
#include <uvmalloc/types.hpp>

namespace uvm {

class FigureStore;
class HintCounters;
class MemoryObserver;
enum class CopyReason : std::uint8_t;
struct Engine;
struct Figures;
struct MovedStorage;
struct SegmentDescription;
struct Statistics;
struct WantedPlacement;
namespace sharing {
struct SharingFigures;
}
namespace live {  // include/uvmalloc/use_range.hpp
enum class Launch : std::uint8_t;
struct LiveFigures;
struct UseRange;
}  // namespace live

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
  // and pinned requests, and device requests throw std::runtime_error.
  void* allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream = nullptr);
  // As allocate(), aligned to `alignment_bytes`, a power of two up to 2 MiB; any other throws
  // std::invalid_argument. Above 512 bytes a small host or pinned block takes a 2 MiB page of its
  // own, and a forked child gets std::runtime_error.
  void* allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                         std::size_t alignment_bytes, StreamHandle stream);

  // Frees the block that starts at `address`, with all its indirect records. nullptr is allowed. A
  // kDouble or kInterior result is logged with a description of the address.
  FreeResult free(void* address) noexcept;
  // As free(), for a memory resource, whose deallocate() has no result: logs kNotOurs too.
  void free_or_log(void* address) noexcept;
  // As free_or_log(), but the block is not used again before the present work on `stream` of
  // `device` is over. Waits for the stream if there is no memory to record its use.
  void free_after(void* address, int device, StreamHandle stream) noexcept;

  // Records that `stream` of `device` works on the block: after its free the block is not used
  // again before that work is over. Returns false if `address` is in no live block.
  //
  // This function and all below throw std::out_of_range if the device does not exist, unless they
  // are noexcept or say otherwise.
  bool record_use(const void* address, int device, StreamHandle stream);
  bool record_use(const void* address, const DeviceStream& stream);
  // As record_use(), for all streams of the device for which memory was ever requested.
  bool record_use_of_all(const void* address, int device);

  // ---- uses of memory, for planning while a device has less memory than the program uses
  //
  // The functions do nothing otherwise. They move memory and never change its contents
  // (docs/oversubscription.md).
  //
  // Whether a plan needs reports of uses now. The listener is called at each change, on the thread
  // that causes it. It must not call the allocator.
  bool wants_uses() const noexcept;
  void set_use_listener(std::function<void(bool wants_uses)> listener);
  // `find` returns whether the program searches for the largest batch (UVMALLOC_SPILL). It is
  // called without locks, seldom, on threads that allocate or use memory. It must not call the
  // allocator.
  void set_search_signs(std::function<SearchSign()> find);
  // Call this before a kernel that uses these ranges is launched on `stream` of `device`. Each
  // range lies in one block; other ranges are ignored. For a captured graph pass the ranges of all
  // its kernels (live::joined_uses), even if its memory is in no live block. If programs take turns
  // on the device (UVMALLOC_SHARE), the function waits for this program's turn.
  void note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                 live::Launch launch) noexcept;
  // As note_uses(), for one range, on the device where its block is used. `access` is live::kReads,
  // live::kWrites or both. Returns false if the address is in no live block; this is checked only
  // if wants_uses().
  bool note_use(const void* address, std::size_t size_bytes, StreamHandle stream,
                std::uint8_t access);
  // As note_uses(), on the device where the block of the first range is used. Returns the first
  // address that is in no live block, and notes nothing then; else nullptr.
  const void* note_uses(StreamHandle stream, std::span<const live::UseRange> uses,
                        live::Launch launch);
  // Marks the end of a step of the program. Steps are found without it too.
  void step_boundary() noexcept;
  live::LiveFigures live_figures() const;
  // Figures by device; empty unless UVMALLOC_SHARE is on.
  std::vector<sharing::SharingFigures> sharing_figures() const;

  // Returns the streams that work on the block, its own included; none if the address is in no live
  // block.
  std::vector<DeviceStream> uses_of(const void* address) const;

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

  using Move = MoveRequest;
  // Moves a block, or a part of it, without copying: adds an indirect record for the destination,
  // advises whole segments, and prefetches on the I/O lane. Returns the record, which is valid
  // until release() or the block's free. Returns nullptr if `address` is in no live block, or the
  // block has the most records possible (RealStorage::kMostReferences).
  //
  // Throws as wait_for_uses() if it waits. Throws OutOfMemoryError if the device's limit has no
  // room for the block, and std::bad_alloc without memory for the record. After an error the block
  // has not moved, but its producer counts as a user.
  MovedStorage* move(void* address, const Move& move);

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
  //
  // The advice splits the driver's range for good, so it is for the few blocks that a program knows
  // better. Unset it before the free: the next user of the pages inherits it. Returns false if the
  // address is in no live block, or the block covers no whole page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Returns the bytes of the 2 MiB pages that the range touches, by place, as hints and moves have
  // left them; faults are not seen. Places without bytes are left out. The range is cut to the
  // block that holds `address`. Empty if the address is in no block.
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;

  // Removes one indirect record. Frees the block with its last one.
  void release(MovedStorage* record) noexcept;

  // Waits until no recorded stream works on the block any more. Call it before the host writes to
  // the block in place. Throws std::runtime_error if a stream cannot be waited for, for example
  // because it is being captured.
  void wait_for_uses(const void* address);

  // Describes the block that holds `address`, which may be interior. nullopt: the address is in no
  // block.
  std::optional<BlockDescription> find(const void* address) const;
  // Whether `address` lies in memory that this allocator has from the driver, used or not. Do not
  // pass such an address to the driver to free: the driver would free all blocks of its allocation.
  bool has_taken(const void* address) const;

  // Gives all cached memory back: free pages to their spans, which discard them if the device can,
  // and empty spans to the driver. Waits for blocks behind fences.
  void release_cached();
  // As release_cached(), for one memory kind, or for one private pool that has no users any more.
  void release_cached_of(Facade facade);
  void release_cached_of(int device, std::uint64_t private_pool);

  // Call this before the stream is destroyed; it must get no more work. Another stream may get its
  // handle, and that stream's work is not ordered after this one's. The next new stream takes over
  // the memory cached for this one, and starts after its present work.
  //
  // If the stream is captured, its present work cannot be ordered: the device is waited for before
  // that memory, and blocks of other streams that it worked on, are used again. If private pools
  // hold some of its memory, the device is waited for at once. If the wait is not possible, the
  // memory stays unused until those pools are released.
  void forget_stream(int device, StreamHandle stream);

  // Call begin_capture() before the call that begins a capture of the stream, in the same thread.
  // Call end_capture() after its end, or if it did not begin. The allocator's waits for the
  // stream's work then do not invalidate the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Returns the streams of the device for which memory was requested and which are not forgotten. A
  // device that does not exist has none.
  std::vector<DeviceStream> streams_of(int device) const;

  // Waits until no thread of the allocator calls the device. Call it before the program destroys
  // the device's context.
  void finish_prefetches() noexcept;

  // Call this right after the program has destroyed the device's context, and with it all memory,
  // streams and events there (cudaDeviceReset). Ends the blocks of that memory and returns their
  // addresses, which must not be freed again. Blocks in ordinary memory stay. Other threads must
  // not use the device meanwhile, as for the reset itself.
  std::vector<void*> forget_device(int device);

  // Waits for all work of the device. Returns false if work may still be in flight, because the
  // device fails or because a stream captures: waiting would invalidate its graph.
  bool wait_for_device(int device);

  // Gives back the idle cached memory that is due at `now`. Allocations and frees call it if
  // UVMALLOC_DECAY is set; a program may call it as well.
  void decay(std::chrono::steady_clock::time_point now);

  // Opens the private pool `id` (not 0): until end_private_pool() it serves device requests on
  // streams for which `routed` returns true, and no others. It is for graphs, whose replays use the
  // memory without a request, and for pools of the program. If several open pools match a stream,
  // the one opened last serves.
  //
  // While a capturing pool is open, nothing is waited for, queried or given to the driver; fences
  // are recorded when the last one has ended.
  //
  // The first call with an `id` makes the pool, and each call adds a user. A private pool keeps its
  // memory until release_private_pool() was called as often as begin_private_pool() and
  // retain_private_pool(). Throws std::invalid_argument if `id` is 0 or the device does not exist.
  using StreamFilter = std::function<bool(StreamHandle)>;
  // Returns the number of the scope, which is not 0.
  std::uint64_t begin_private_pool(int device, std::uint64_t id, StreamFilter routed,
                                   bool capturing);
  // Ends the scope of that number; 0: the pool's innermost. Returns false if no such scope is open.
  bool end_private_pool(int device, std::uint64_t id, std::uint64_t scope = 0);
  // Removes a user; with the last one, open scopes end. Returns false if there is no such pool.
  bool release_private_pool(int device, std::uint64_t id);
  // Adds a user without opening the pool; makes the pool if it does not exist. Throws as
  // begin_private_pool().
  void retain_private_pool(int device, std::uint64_t id);
  std::size_t private_pool_users(int device, std::uint64_t id) const;  // 0: no such pool
  // From now on each block of the pool has its 2 MiB pages for itself. Call it before the pool's
  // first block. Returns false if there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);

  using PrivateBlock = uvm::PrivateBlock;
  // The pool's live blocks, by address.
  std::vector<PrivateBlock> private_blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks the live ones of the pool, at their addresses: frees the others, and
  // allocates the missing ones. Contents stay. Waits for streams that use the blocks that it frees.
  // No other thread may use the pool meanwhile. Throws std::invalid_argument, with some blocks
  // done, if a block is not free at its address, and std::logic_error during a capture.
  void restore_private_pool(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks);

  // Adds a callback, which lives as long as the allocator. It frees memory that the program can
  // spare, and returns whether it freed anything.
  //
  // A request that cannot be served calls the callbacks one by one on its thread, without locks.
  // The request is retried after each callback that freed something. The callbacks are called again
  // as long as one of them frees something. A request larger than the budget or the device's limit
  // calls none, since freeing cannot help it.
  //
  // A callback may allocate: its thread calls no callback of this allocator meanwhile. Several
  // threads may call it at a time. Its exceptions leave the request.
  using PressureCallback = std::function<bool()>;
  void add_pressure_callback(PressureCallback callback);

  // Sets the observer, which must outlive its use; nullptr: none.
  void set_memory_observer(MemoryObserver* observer);

  // Limits the bytes of device memory in pools of that device; SIZE_MAX: only the budget counts.
  // The default is Configuration::device_budget_bytes. Memory above a lowered limit stays.
  void set_device_limit(int device, std::size_t most_bytes);

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

  // All figures at one moment. Allocations and frees of other threads wait meanwhile, as for
  // figures(), segments(), the resets and check_invariants().
  Statistics statistics() const;
  // The figures of the report.
  Figures figures() const;
  FigureStore& figure_store();
  // The peaks, or the totals, of that memory kind on that device begin anew.
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);
  std::vector<SegmentDescription> segments() const;

  // The references are valid as long as the allocator.
  const HintCounters& hints() const;
  const std::vector<DeviceDescription>& devices() const;
  const DeviceRuntime& runtime() const;
  // Calls of the runtime so far, by the name of the DeviceRuntime method; methods never called are
  // left out.
  std::map<std::string, std::uint64_t> runtime_calls() const;
  const Configuration& configuration() const;
  // The most bytes that this process may use at a time.
  std::size_t budget_bytes() const;
  // Returns kManaged or kOrdinary.
  HostBacking host_backing() const;
  // Returns the bytes of the device's memory that this process can still get under the budgets,
  // given the driver's figures. A limit set by set_device_limit() does not count: programs know it,
  // and compare with other allocators' figures.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Begins, ends or marks a trace of everything that the allocator does (docs/trace.md).
  // start_trace() returns an empty string, or in one line why it cannot begin.
  std::string start_trace(const std::string& file);
  void stop_trace() noexcept;
  void mark_trace(std::string_view text) noexcept;
  // Whether the configuration wants call sites in traces.
  bool wants_call_sites() const noexcept { return wants_call_sites_; }
  // For the trace, if it has call sites: the place in the program that allocated the block at
  // `address`, which the caller holds. `site` is text; `caller` is a return address. Call them
  // without a lock of the allocator.
  void trace_call_site(const void* address, std::string_view site) noexcept;
  void trace_caller(const void* address, const void* caller) noexcept;
  // Work that the program puts on its streams, for the trace. uvmalloc_trace_kernel() and
  // uvmalloc_trace_order() describe the arguments. They do nothing if no trace is written.
  void trace_kernel(int device, StreamHandle stream, std::uint64_t amount, int type,
                    std::span<const TracedRange> ranges) noexcept;
  void trace_order(int device, StreamHandle stream, const void* signal, int order) noexcept;

  // Around a fork; Forks calls them for all allocators in turn.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // Whether this process is a forked child of the one that made the allocator. In a forked child
  //  * live host blocks are where the parent has them, as they were. Blocks in managed memory were
  //    copied, up to Configuration::fork_limit_bytes; the kernel shares ordinary memory, copy on
  //    write.
  //  * allocate() serves host and pinned requests from malloc. free() takes those back; for blocks
  //    of the parent it returns kFreed and does nothing.
  //  * find() and the figures describe the moment of the fork.
  //  * no other memory belongs to the allocator: functions that name an address return false,
  //    nullptr or nothing, and functions that give memory back do nothing.
  //  * functions that need the device throw std::runtime_error: allocate(), begin_private_pool(),
  //    retain_private_pool(), restore_private_pool().
  // No function waits for a lock that a thread of the parent held, or calls the driver.
  bool in_forked_child() const;

  // Aborts with a line that names the broken invariant.
  void check_invariants() const;

 private:
  // Only fast_path.cpp defines them, so that a hit in the thread's cache is one function.
  const std::unique_ptr<Engine> engine_;
  const bool wants_call_sites_;
};

}  // namespace uvm
