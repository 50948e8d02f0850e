// The one allocator behind the host, pinned and device facades. It serves blocks of managed memory,
// or of ordinary memory for the host facade where that serves better (host_backing.hpp), from pools
// per facade, stream and class. It keeps a pair of storage records for each block, notifies the
// placement planner of its uses and moves, and fences blocks that streams still use.
//
// Thread-safe. A hit in the thread's cache takes no lock and calls nothing; engine/engine.hpp has
// the locks and the parts.
//
// When memory is used again:
//  * device facade: at once by requests of the stream it was allocated for; after the events of
//    every other stream that used it (record_use) for anybody.
//  * host and pinned facades: the host would write at once, so a block that a device stream has
//    used waits for that stream's events even if the same caller asks again.
//  * a block that has moved joins the free blocks of the place where its pages are, and is taken
//    back from there before new pages are touched for the facade it was made for.
// engine/escalation.hpp has the steps for a request that finds nothing.
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
  // Takes over the runtime. Throws std::runtime_error, in one line, if managed memory of a device
  // does not follow its use, and std::invalid_argument if budget_bytes or device_budget_bytes is
  // below 2 MiB, the size of a page. With `figures_file` the figures are also in that file, however
  // the process ends.
  CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                          const Configuration& configuration, const std::string& figures_file = {});

  // Frees all spans, in use or not. A process-wide instance is never destroyed, because exit
  // handlers may still free into it.
  ~CachingManagedAllocator();

  CachingManagedAllocator(const CachingManagedAllocator&) = delete;
  CachingManagedAllocator& operator=(const CachingManagedAllocator&) = delete;

  // `size_bytes` bytes, for use on `stream` of `device`. Host and pinned blocks belong to no
  // stream; `device` will access them. The address is aligned to 512 bytes; of pinned blocks above
  // 4 KiB to 4 KiB; of host and pinned blocks from 1 MiB on to 2 MiB. 0 bytes: nullptr. Contents
  // are undefined. Throws OutOfMemoryError, std::invalid_argument for a device that does not exist,
  // or std::runtime_error if the driver fails for another reason. In a forked child malloc serves
  // host and pinned requests, and device requests throw std::runtime_error.
  void* allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream = nullptr);
  // The same, aligned to `alignment_bytes`, a power of two up to 2 MiB; std::invalid_argument for
  // any other. Above 512 a small host or pinned block takes a 2 MiB page of its own, and a forked
  // child gets std::runtime_error: malloc serves there.
  void* allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                         std::size_t alignment_bytes, StreamHandle stream);

  // Frees the block that starts at `address`, with all of its indirect records. nullptr is fine.
  // Every result but kFreed and kNotOurs is logged with a description of the address.
  FreeResult free(void* address) noexcept;
  // The same for a memory resource, whose deallocate() has no result: kNotOurs is logged too.
  void free_or_log(void* address) noexcept;
  // The same for a block that must not be used again before the work on `stream` so far is over.
  // Waits for the stream if there is no memory to record that.
  void free_after(void* address, int device, StreamHandle stream) noexcept;

  // `stream` of `device` works on the block: the block is not used again before that work is over.
  // False: the address is not ours. This function and all below throw std::out_of_range for a
  // device that does not exist.
  bool record_use(const void* address, int device, StreamHandle stream);
  bool record_use(const void* address, const DeviceStream& stream);
  // The same for all streams of the device for which memory was ever requested.
  bool record_use_of_all(const void* address, int device);

  // Uses of memory, for planning while a device has less memory than the program uses
  // (docs/oversubscription.md). Otherwise the functions do nothing. They move memory, and never
  // change its contents.
  //
  // Whether a plan needs them now. The listener is called at each change. It must not call the
  // allocator.
  bool wants_uses() const noexcept;
  void set_use_listener(std::function<void(bool wants_uses)> listener);
  // `find` says whether the program searches for the largest batch (UVMALLOC_SPILL). It is called
  // without locks, seldom, in threads that allocate or use memory. It must not call the allocator.
  void set_search_signs(std::function<SearchSign()> find);
  // A kernel that uses these ranges is about to be put on `stream` of `device`. Each range lies in
  // one block; ranges in no block are left out. For a captured graph the ranges are those of all
  // its kernels (live::joined_uses), also where its memory is in no live block. Where programs take
  // turns on the device (UVMALLOC_SHARE), the function returns when it is this program's turn.
  void note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                 live::Launch launch) noexcept;
  // The same for one range, on the device where its block is used: `access` is live::kReads,
  // live::kWrites or both. False: the address is in no live block, which is looked up only if
  // wants_uses().
  bool note_use(const void* address, std::size_t size_bytes, StreamHandle stream,
                std::uint8_t access);
  // The same for the ranges of one kernel, or of all kernels of a graph, on the device where the
  // block of the first range is used. Returns the first address in no live block, and notes nothing
  // then; nullptr: there is none.
  const void* note_uses(StreamHandle stream, std::span<const live::UseRange> uses,
                        live::Launch launch);
  // A step of the program ends here. Steps are found without it too.
  void step_boundary() noexcept;
  live::LiveFigures live_figures() const;
  // By device; empty unless UVMALLOC_SHARE is on.
  std::vector<sharing::SharingFigures> sharing_figures() const;

  // The streams that work on the block, its own included; none if the address is not ours.
  std::vector<DeviceStream> uses_of(const void* address) const;

  // A raw pointer to the block has left to code that cannot be followed (numpy, DLPack,
  // data_ptr()). The block must not be shared between tensors that may write. False: the address is
  // not ours.
  bool mark_exported(const void* address);
  // The same for all live blocks that could be shared: a graph is captured, whose replays use their
  // addresses.
  void mark_live_exported();

  // Sets whether the block's use on the host is page-locked memory for the program. The default,
  // also after the block's free, is: only for the pinned facade. A block changes when its only user
  // on the host is not the one that it was made for. Does nothing if `address` is in no live block.
  void set_pinned(const void* address, bool pinned);

  using Move = MoveRequest;
  // Moves a block, or a part of it, without copying: adds an indirect record for the destination,
  // advises whole segments, and prefetches on the I/O lane. nullptr: `address` is in no live block,
  // or the block has the most records possible (RealStorage::kMostReferences). The record is valid
  // until release() or the block's free. Throws as wait_for_uses() if it waits, and std::bad_alloc
  // without memory for the record. The block has not moved then, but its producer counts as a user.
  MovedStorage* move(void* address, const Move& move);

  // Prefetches the whole 2 MiB pages of a range to `destination`, without moving the block: its
  // uses stay. To a device: `stream`, of that device, waits for the prefetch. To the host: the
  // prefetch waits for `stream`, of the device where the bytes are in use. False: the range does
  // not lie in one live block. Pages that are there, or find no room, are left out; under a policy
  // without prefetches, all are.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);

  // Advises the driver on the whole pages of the block that holds `address`: their preferred place,
  // a place that has them mapped wherever they are, and whether readers keep copies. The first two
  // last until the block is advised again or, if it is page-granular, moves; the third lasts over
  // moves. The driver's range is split for good, so this is for the few blocks that a program knows
  // better. The next user of the pages inherits advice that is not taken back before the free.
  // False: the address is not ours, or the block covers no whole page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Bytes of the range's whole 2 MiB pages by place, as hints and moves have left them; faults are
  // not seen. Places without bytes are left out. The range is cut to the block that holds
  // `address`. Empty: the address is not ours.
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;

  // Removes one indirect record; the memory is freed with the last one.
  void release(MovedStorage* record) noexcept;

  // Waits until no recorded stream works on the block any more, before the host writes to it in
  // place. std::runtime_error: a stream is being captured and cannot be waited for.
  void wait_for_uses(const void* address);

  // nullopt: the address is not ours. Interior addresses are fine.
  std::optional<BlockDescription> find(const void* address) const;
  // Whether the address lies in memory that we have from the driver, used or not. There the driver
  // must not be asked to free anything: it would free all blocks of an allocation of its own.
  bool has_taken(const void* address) const;

  // Gives all cached memory back: free pages to their spans, where they are discarded if the device
  // can, and empty spans to the driver. Blocks behind fences are waited for.
  void release_cached();
  // The same for one facade, or for one private pool that has no users any more.
  void release_cached_of(Facade facade);
  void release_cached_of(int device, std::uint64_t private_pool);

  // The stream is about to be destroyed and gets no more work. Another stream may get its handle;
  // its work is not ordered after this one's. The next new stream takes over the memory cached for
  // this one, and starts after its present work. If the stream is captured, so that this order
  // cannot be had, the device is waited for first. The device is also waited for before blocks of
  // other streams that it worked on are used again, and at once if private pools hold some of its
  // memory. If that is not possible, the memory stays unused until those pools are released.
  void forget_stream(int device, StreamHandle stream);

  // Around a capture of the stream: before the call that begins it, in the same thread, and after
  // its end or if it has not begun. Waits for the stream's work then spare the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // The streams of the device that memory was requested for and that have not been forgotten.
  std::vector<DeviceStream> streams_of(int device) const;

  // Waits until no thread of ours calls the device: before the program destroys its context.
  void finish_prefetches() noexcept;

  // The program has destroyed the device's context, and with it all memory, streams and events
  // there (cudaDeviceReset): call it right after that. Ends the blocks of that memory, which must
  // not be freed again, and returns their addresses. Blocks in ordinary memory stay. Other threads
  // must not use the device meanwhile, as for the reset itself.
  std::vector<void*> forget_device(int device);

  // Waits for all work of the device. False: the work may go on, because the device fails, or
  // because a stream captures: waiting would invalidate its graph.
  bool wait_for_device(int device);

  // Gives back the part of idle cached memory that is due at `now`. With UVMALLOC_DECAY it is
  // called during allocations and frees; a program may call it as well.
  void decay(std::chrono::steady_clock::time_point now);

  // Until end_private_pool(), the private pool `id` (not 0) serves the device facade's requests on
  // streams for which `routed` returns true. It serves no others. It is for graphs, whose replays
  // use the memory without a request, and for pools of the program. Of several pools that are open
  // for a stream, the one opened last serves. While a capturing pool is open nothing is waited for,
  // queried or given to the driver; fences are recorded when the last one has ended. The first call
  // with an `id` makes the pool, and each call adds a user. Memory of a private pool stays its own
  // until release_private_pool() was called as often as begin_private_pool() and
  // retain_private_pool().
  using StreamFilter = std::function<bool(StreamHandle)>;
  // Returns the number of the scope, not 0.
  std::uint64_t begin_private_pool(int device, std::uint64_t id, StreamFilter routed,
                                   bool capturing);
  // Ends the scope of that number; 0: the pool's innermost. False: no such scope is open.
  bool end_private_pool(int device, std::uint64_t id, std::uint64_t scope = 0);
  bool release_private_pool(int device, std::uint64_t id);
  // Adds a user without opening the pool; makes the pool if it does not exist.
  void retain_private_pool(int device, std::uint64_t id);
  std::size_t private_pool_users(int device, std::uint64_t id) const;  // 0: there is no such pool
  // From now on its blocks have their 2 MiB pages for themselves. Called before its first block.
  // False: there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);

  using PrivateBlock = uvm::PrivateBlock;
  // By address.
  std::vector<PrivateBlock> private_blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks the live ones of the pool, at their addresses: frees the others, and
  // allocates the missing ones. Waits for streams that use the blocks that it frees. Contents stay.
  // No other thread may use the pool meanwhile. Throws std::invalid_argument, with some blocks
  // done, if a block is not free at its address, and std::logic_error during a capture.
  void restore_private_pool(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks);

  // A callback frees what the program can do without, and returns whether it freed anything. It is
  // called without locks, on the thread of a request that cannot be served. Callbacks are called
  // one by one, and the request is retried after each that freed something. They are called again
  // as long as one of them frees something. They are not called for a request larger than the
  // budget or the device's limit, since freeing cannot help it. A callback may allocate: the thread
  // that runs it calls no callback of this allocator meanwhile. Several threads may call it at a
  // time. The request passes on its exceptions. It lives as long as the allocator.
  using PressureCallback = std::function<bool()>;
  void add_pressure_callback(PressureCallback callback);

  // nullptr: no observer any more.
  void set_memory_observer(MemoryObserver* observer);

  // The device facade of that device holds at most so many bytes in pools; SIZE_MAX: only the
  // budget counts. The default is Configuration::device_budget_bytes. Memory that is held already
  // stays.
  void set_device_limit(int device, std::size_t most_bytes);

  // Until it moves to the host, only devices use the block that holds `address`: a forked child
  // gets no copy of it. Does nothing if `address` is in no live block.
  void note_left_host(const void* address);

  // The block that holds `address` is used at none but these places: its use elsewhere has ended.
  // For a caller whose moves keep their source. False: nothing has changed, because that was known,
  // `address` is in no live block, or no use would be left.
  bool note_places(const void* address, PlaceSet places);
  // Takes back a note_places(): the block is used at that place as well, where it was used before.
  void note_place_again(const void* address, Place place);
  // Called before figures are read and without locks: an owner whose uses end without a word then
  // calls note_places(). Set it before other threads use the allocator.
  void set_places_source(std::function<void()> source);

  // A host block for bytes in other memory of this process. The caller copies them and returns the
  // other memory piece by piece, so they never take memory twice. An automatic budget grows by the
  // block, because that memory did not count as available. Throws as allocate().
  void* allocate_for_conversion(int device, std::size_t size_bytes);

  void note_copy(CopyReason reason, std::size_t size_bytes);
  void note_materialization(std::size_t copied_bytes, bool steal);

  Statistics statistics() const;
  // The figures of the report.
  Figures figures() const;
  FigureStore& figure_store();
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);
  std::vector<SegmentDescription> segments() const;

  const HintCounters& hints() const;
  const std::vector<DeviceDescription>& devices() const;
  const DeviceRuntime& runtime() const;
  // Calls of the runtime so far, by the name of the DeviceRuntime method; those never made are left
  // out.
  std::map<std::string, std::uint64_t> runtime_calls() const;
  const Configuration& configuration() const;
  std::size_t budget_bytes() const;
  // kManaged or kOrdinary.
  HostBacking host_backing() const;
  // Bytes of the device's memory that this process can still get by the budgets, given the driver's
  // answer. A limit that the program has set for the device does not count: programs know it, and
  // compare with other allocators' figures.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Begins or ends a trace of everything that the allocator does. Returns an empty string, or in
  // one line why not.
  std::string start_trace(const std::string& file);
  void stop_trace() noexcept;
  void mark_trace(std::string_view text) noexcept;
  // Whether Configuration asks for call sites.
  bool wants_call_sites() const noexcept { return wants_call_sites_; }
  // For the trace, where call sites are asked for: the place in the program that made the block at
  // `address`, which the caller holds. `site` is text; `caller` is a return address. Called without
  // any lock of the allocator.
  void trace_call_site(const void* address, std::string_view site) noexcept;
  void trace_caller(const void* address, const void* caller) noexcept;
  // What the program puts on its streams, for the trace: uvmalloc_trace_kernel() and
  // uvmalloc_trace_order() say what the arguments mean. They do nothing where no trace is written.
  void trace_kernel(int device, StreamHandle stream, std::uint64_t amount, int type,
                    std::span<const TracedRange> ranges) noexcept;
  void trace_order(int device, StreamHandle stream, const void* signal, int order) noexcept;

  // Around a fork, as Forks calls them for all allocators in turn.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // In a forked child
  //  * live host blocks are where the parent has them, as they were. Those in managed memory were
  //    copied, up to Configuration::fork_limit_bytes; ordinary memory the kernel shares, copy on
  //    write.
  //  * allocate() serves host and pinned requests from malloc. free() takes those back; for blocks
  //    of the parent it returns kFreed and does nothing.
  //  * find() and the figures describe the moment of the fork.
  //  * no other memory is ours: functions that name an address return false, nullptr or nothing,
  //  and
  //    functions that give memory back do nothing.
  //  * functions that need the device throw std::runtime_error: allocate(), begin_private_pool(),
  //    retain_private_pool(), restore_private_pool().
  // No function waits for a lock that a thread of the parent had, or calls the driver.
  bool in_forked_child() const;

  // Aborts with a line that names what is broken.
  void check_invariants() const;

 private:
  // By fast_path.cpp alone, so that a hit in the thread's cache is one function.
  const std::unique_ptr<Engine> engine_;
  const bool wants_call_sites_;
};

}  // namespace uvm
