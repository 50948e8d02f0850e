// The one allocator behind the host, pinned and device facades. It serves blocks of managed memory,
// or of ordinary memory for the host facade where that serves better (host_backing.hpp), from pools
// per facade, stream and class. It keeps a pair of storage records for each block, notifies the
// placement planner of what happens to it, and fences what streams still use.
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
// engine/escalation.hpp has what is done, and in which order, when a request finds nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/allocator/errors.hpp>
#include <uvmalloc/allocator/types.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

class CountingRuntime;
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

class CachingManagedAllocator {
 public:
  // Takes over the runtime. Throws std::runtime_error, in one line, where managed memory of
  // a device does not follow its use, and std::invalid_argument where budget_bytes or
  // device_budget_bytes is below 2 MiB, the size of a page. With `figures_file` the figures of
  // figures() are also in that file, as long as it has its name, however the process ends
  // (figure_store.hpp).
  CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                          const Configuration& configuration, const std::string& figures_file = {});

  // Frees all spans, in use or not. Not for process-wide instances, which outlive every exit
  // handler.
  ~CachingManagedAllocator();

  CachingManagedAllocator(const CachingManagedAllocator&) = delete;
  CachingManagedAllocator& operator=(const CachingManagedAllocator&) = delete;

  // `size_bytes` bytes, aligned to 512 (to 2 MiB in blocks of whole pages: see block.hpp), for use
  // on `stream` of `device`; host and pinned blocks belong to no stream and `device` is the one
  // that will access them. 0 bytes: nullptr. Contents are undefined. Throws OutOfMemoryError,
  // std::invalid_argument for a device that does not exist, or std::runtime_error where the driver
  // fails for another reason. In a forked child host and pinned requests are served by malloc and
  // device requests throw std::runtime_error.
  void* allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream = nullptr);
  // The same, aligned to `alignment_bytes`, a power of two up to 2 MiB; std::invalid_argument for
  // any other.
  void* allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                         std::size_t alignment_bytes, StreamHandle stream);

  // Gives back the start of a block, without its size. nullptr is fine. Every result but kFreed and
  // kNotOurs is logged with what is known of the address. A block of several indirect records goes
  // with all of them.
  FreeResult free(void* address) noexcept;

  // `stream` of `device` works on the block: it is not used again before that is over. False: not
  // ours. Here and in all that follows: std::out_of_range for a device that does not exist.
  bool record_use(const void* address, int device, StreamHandle stream);
  bool record_use(const void* address, const DeviceStream& stream);
  // All streams of the device that memory was ever asked for.
  bool record_use_of_all(const void* address, int device);

  // The streams that work on the block, its own included; none where it is not ours.
  std::vector<DeviceStream> uses_of(const void* address) const;

  // A raw pointer to the block is in hands that cannot be followed (numpy, DLPack, data_ptr()): it
  // must not be shared between tensors that may write. False: not ours.
  bool mark_exported(const void* address);
  // The same for all blocks that live now and could be shared: a graph is captured, whose replays
  // use their addresses.
  void mark_live_exported();

  // Says whether the block's use on the host is page-locked memory to the program. Until the first
  // call, and in every later life of the block, it is if the facade is the pinned one. A block
  // changes when its sole user on the host is not the one that it was made for. Nothing happens
  // where `address` is in no live block.
  void set_pinned(const void* address, bool pinned);

  using Move = MoveRequest;
  // Moves a block, or a part of it, without copying: adds an indirect record for the destination,
  // advises where whole segments allow and prefetches on the I/O lane. nullptr: `address` is in no
  // live block, or that block has as many records as it can have (RealStorage::kMostReferences).
  // The record is valid until release() or the block's free. Throws as wait_for_uses() where it
  // waits, and std::bad_alloc where there is no memory for the record. The block has not moved
  // then, but its producer counts as a user.
  MovedStorage* move(void* address, const Move& move);

  // Asks for the whole 2 MiB pages of a range to be at `destination`, without moving the block:
  // who uses it stays as it is. To a device: `stream`, of that device, waits for the prefetch; to
  // the host: the prefetch waits for `stream`, of the device where the bytes are in use. False:
  // the range does not lie in one live block. What is already there, or has no room, is left out,
  // and under a policy without prefetches all is.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);

  // Advises the driver on the whole pages of the block that holds `address`, until it is advised
  // again or, with pages for itself, moves: where they are preferred, and a place that has them
  // mapped wherever they are; and, over moves too, whether places that read them keep copies. The
  // driver's range is split for good, so this is for the few blocks that a program knows better.
  // The next user of the pages inherits what is not taken back before the free. False: not ours, or
  // no page is wholly the block's.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Where the range's 2 MiB pages are, as far as hints and moves tell (faults are not seen): bytes
  // of whole pages by place, places without any left out. What is beyond the block that holds
  // `address` is not looked at. Empty: not our memory.
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;

  // Takes one indirect record away; the memory is freed with the last one.
  void release(MovedStorage* record) noexcept;

  // Waits until no recorded stream works on the block any more: before the host writes to it in
  // place. std::runtime_error where a stream cannot be waited for: it is being captured.
  void wait_for_uses(const void* address);

  // nullopt: not ours. Interior addresses are fine.
  std::optional<BlockDescription> find(const void* address) const;

  // Gives all cached memory back: free pages to their spans, where they are discarded if the device
  // can, and empty spans to the driver. Blocks behind fences are waited for.
  void release_cached();
  // That of one facade alone, or of one private pool, which nobody may use any more.
  void release_cached_of(Facade facade);
  void release_cached_of(int device, std::uint64_t private_pool);

  // The stream is about to be destroyed and gets no more work. Its handle may come again for
  // another one, which is not ordered after its work. The next stream that is new takes over what
  // is cached for it, and starts after the work that it has now; where that is not to be had, since
  // it is captured, the device is waited for first. That is done as well before blocks of other
  // streams that it worked on are used again, and at once where private pools hold some of its
  // memory; where it cannot be then, nobody uses that memory before those pools are released.
  void forget_stream(int device, StreamHandle stream);

  // Gives back the part of idle cached memory that is due at `now` (decay.hpp). Called now and then
  // with the present time where UVMALLOC_DECAY is set; a program may call it as well.
  void decay(std::chrono::steady_clock::time_point now);

  // Until end_private_pool, requests of the device facade on streams of which `routed` says so come
  // from the private pool `id` (not 0), and nothing else ever does: for graphs, whose replays use
  // the memory without asking, and for pools of the user's. Of several that are open for a stream,
  // the one that was opened last. While a capturing one is open nothing
  // is waited for, queried or given to the driver, and fences are recorded when the last one has
  // ended. The first call with an `id` makes the pool, each counts as a user of it. Memory of a
  // private pool stays its own until release_private_pool was called as often as
  // begin_private_pool.
  using StreamFilter = std::function<bool(StreamHandle)>;
  // Returns a number of its own, not 0.
  std::uint64_t begin_private_pool(int device, std::uint64_t id, StreamFilter routed,
                                   bool capturing);
  // Ends the one of that number; 0: the pool's innermost. False: that is not open.
  bool end_private_pool(int device, std::uint64_t id, std::uint64_t scope = 0);
  bool release_private_pool(int device, std::uint64_t id);
  // One user more, without opening it; makes the pool where there is none.
  void retain_private_pool(int device, std::uint64_t id);
  std::size_t private_pool_users(int device, std::uint64_t id) const;  // 0: there is no such pool
  // From now on its blocks have their 2 MiB pages for themselves: to be called before its first
  // block. False: there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);

  using PrivateBlock = uvm::PrivateBlock;
  // By address.
  std::vector<PrivateBlock> private_blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks the live ones of the pool, at their addresses: frees the others, and
  // allocates those that are not. Waits for streams that use what it frees. Contents stay as they
  // are. Nobody else may use the pool meanwhile. Throws std::invalid_argument, with some of it
  // done, where one cannot be had at its address, and std::logic_error during a capture.
  void restore_private_pool(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks);

  // A callback frees what the program can do without, and returns whether it freed anything. It is
  // called without locks, on the thread of a request that cannot be met. Callbacks are called one
  // by one, and the request is retried after each that freed something. They are called again as
  // long as one of them frees something. They are not called for a request larger than the budget
  // or the device's limit, since freeing cannot help it. A callback may allocate: the thread that
  // runs it calls no callback of this allocator meanwhile. Several threads may call it at a time.
  // What it throws leaves the request. It lives as long as the allocator.
  using PressureCallback = std::function<bool()>;
  void add_pressure_callback(PressureCallback callback);

  // nullptr: nobody listens any more.
  void set_memory_observer(MemoryObserver* observer);

  // The device facade of that device holds at most so many bytes in pools; SIZE_MAX: the budget
  // alone decides. At first it is Configuration::device_budget_bytes. What is held already stays.
  void set_device_limit(int device, std::size_t most_bytes);

  // Until it moves to the host, only devices use the block that holds `address`: what is forked
  // finds nothing there. Nothing happens where it is not ours or not live.
  void note_left_host(const void* address);

  // A conversion: bytes that lie in other memory of this process go into a host block of ours. The
  // caller copies them and gives the other memory back piece by piece, so they are never there
  // twice. An automatic budget grows by the block, because that memory did not count as available.
  // Throws as allocate().
  void* begin_conversion(int device, std::size_t size_bytes);
  // After the copy, for the same size. With `done` false nothing was copied: the block is freed.
  void end_conversion(void* address, std::size_t size_bytes, bool done);

  void note_copy(CopyReason reason, std::size_t size_bytes);
  void note_materialization(std::size_t copied_bytes, bool steal);

  Statistics statistics() const;
  // What the report tells.
  Figures figures() const;
  FigureStore& figure_store();
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);
  std::vector<SegmentDescription> segments() const;

  const HintCounters& hints() const;
  const std::vector<DeviceDescription>& devices() const;
  const CountingRuntime& runtime() const;
  const Configuration& configuration() const;
  std::size_t budget_bytes() const;
  // kManaged or kOrdinary.
  HostBacking host_backing() const;
  // How much of the device's memory this process can still have, given the driver's answer, by the
  // budgets. A limit that the program itself has set for the device is not looked at: programs know
  // that, and compare with other allocators' figures.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Begins or ends a trace of everything the allocator does (trace_recorder.hpp). Returns an empty
  // string, or in one line why not.
  std::string start_trace(const std::string& file);
  void stop_trace() noexcept;
  void mark_trace(std::string_view text) noexcept;

  // Around a fork, as Forks calls them for all allocators in turn.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // In a forked child
  //  * live host blocks are where the parent has them, as they were. Those in managed memory were
  //    copied, up to Configuration::fork_limit_bytes; ordinary memory the kernel shares, copy on
  //    write.
  //  * allocate() serves host and pinned requests from malloc. free() takes those back; of blocks
  //    of the parent it returns kFreed and does nothing.
  //  * find() and the figures say what was at the fork.
  //  * nothing else is ours: functions that name an address return false, nullptr or nothing, and
  //    functions that give something back do nothing.
  //  * what needs the device throws std::runtime_error: allocate(), begin_private_pool(),
  //    retain_private_pool(), restore_private_pool().
  // No function waits for a lock that a thread of the parent had, or calls the driver.
  bool in_forked_child() const;

  // Aborts with a line that names what is broken.
  void check_invariants() const;

 private:
  // By fast_path.cpp alone, so that a hit in the thread's cache is one function.
  const std::unique_ptr<Engine> engine_;
};

}  // namespace uvm
