// The one allocator behind the host, pinned and device facades. It serves blocks of managed memory,
// or of ordinary memory for the host facade where that serves better (host_backing.hpp),
// from pools per facade, stream and class, keeps a pair of storage records for each, tells the
// placement planner what happens to them, and fences what streams still use. This class ties its
// parts together: ThreadCaches (blocks ready for their thread), BlockPools and SmallArenas (free
// blocks), FencedBlocks with StreamWork (blocks that streams still use), PrivatePools (what belongs
// to graphs), SpanStore with SpanMemory (memory of the driver), PlacementPlanner with HintSender
// (where pages should be), StatisticsBook, and the budget.
//
// Thread-safe. A hit in the thread's cache takes no lock and calls nothing. Locks, in the order in
// which they may be taken. The first two are turns: who has one waits for the device or asks it,
// and who comes next for the same reason finds what was done. None of the others is held across a
// driver call.
//   release_mutex_   one thread at a time gives cached memory back
//   FencedBlocks     one thread at a time takes blocks whose fences are over
//   SmallArenas      one thread at a time is inside
//   ThreadCaches     the list of caches, then the caches' own locks (with them, a stopped world)
//   lock_            pools, spans, records of blocks with nobody, ledger, statistics
//
// When memory is used again:
//  * device facade: at once by requests of the stream it was allocated for; after the events of
//    every other stream that used it (record_use) for anybody.
//  * host and pinned facades: the host would write at once, so a block that a device stream has
//    used waits for that stream's events even if the same caller asks again.
//  * a block that has moved joins the free blocks of the place where its pages are, and is taken
//    back from there before new pages are touched for the facade it was made for.
// Before new pages are touched, in this order: what fits in the pool, guests, what is away, thread
// caches of all threads for this stream, whole pages of a host facade's other class, and if a
// device's own memory would be exceeded, all that is kept by threads or behind fences. Under
// pressure: thread caches of all streams, fences are waited for, other streams' blocks are taken
// after the device is idle, what has idled long enough decays, callbacks run, cached pages go back
// to their spans (discarded where the device can), empty spans to the driver, and the request is
// tried again after each; OutOfMemoryError. Callbacks run one by one (pressure_rounds.hpp). After
// each that freed something the request is retried with all of these steps, and then the next
// callback runs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/allocator/base/biased_mutex.hpp>
#include <uvmalloc/allocator/base/poison.hpp>
#include <uvmalloc/allocator/base/recycled.hpp>
#include <uvmalloc/allocator/cache/thread_caches.hpp>
#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/allocator/counters/figure_store.hpp>
#include <uvmalloc/allocator/engine/decay.hpp>
#include <uvmalloc/allocator/engine/pressure_rounds.hpp>
#include <uvmalloc/allocator/errors.hpp>
#include <uvmalloc/allocator/fork/child_memory.hpp>
#include <uvmalloc/allocator/fork/fork_snapshot.hpp>
#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/memory_observer.hpp>
#include <uvmalloc/allocator/small/small_arenas.hpp>
#include <uvmalloc/allocator/spans/host_backing.hpp>
#include <uvmalloc/allocator/spans/machine_budget.hpp>
#include <uvmalloc/allocator/spans/span_memory.hpp>
#include <uvmalloc/allocator/spans/span_store.hpp>
#include <uvmalloc/allocator/statistics.hpp>
#include <uvmalloc/allocator/statistics/segments.hpp>
#include <uvmalloc/allocator/statistics/statistics_book.hpp>
#include <uvmalloc/allocator/streams/fenced_blocks.hpp>
#include <uvmalloc/allocator/streams/private_pools.hpp>
#include <uvmalloc/allocator/streams/stream_work.hpp>
#include <uvmalloc/allocator/trace/trace_recorder.hpp>
#include <uvmalloc/hints/hint_sender.hpp>
#include <uvmalloc/hints/placement_planner.hpp>
#include <uvmalloc/runtime/counting_runtime.hpp>
#include <uvmalloc/runtime/ranked.hpp>
#include <uvmalloc/storage/residency_ledger.hpp>
#include <uvmalloc/storage/storage_records.hpp>

namespace uvm {

// What find() knows of an address.
struct BlockDescription {
  void* base = nullptr;
  std::size_t size_bytes = 0;  // as rounded
  std::size_t requested_bytes = 0;
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;   // device facade only
  std::uint64_t private_pool = 0;  // 0: none
  Place location;                  // of its newest use
  bool live = false;
  bool exported = false;
  bool movable = false;           // it shares its first and last 2 MiB page at most
  bool waits_when_freed = false;  // device facade only: other streams may still use it
  bool used_by_host = false;      // some use of it, not necessarily the newest, is on the host
  bool pinned = false;            // its use on the host is page-locked memory to the program
  std::uint32_t references = 0;   // indirect records
};

class CachingManagedAllocator {
 public:
  // Takes over the runtime. Throws std::runtime_error, in one line, where no device of it can use
  // managed memory concurrently with the host, and std::invalid_argument where budget_bytes or
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

  struct Move {
    Place source;  // of the use that moves: a block may be used in several places
    Place destination;
    int stream_device = 0;          // the device of `stream`
    StreamHandle stream = nullptr;  // to a device: the stream that will use the bytes; to the host:
                                    // the one that made them
    bool wait = true;               // to the host: wait for that stream and the recorded ones first
    // Bytes from the given address on, where only a part of the block moves; 0: all of it.
    std::size_t size_bytes = 0;
    // The caller releases the record; else one record per place serves all moves there, and goes
    // with the block.
    bool held = true;
  };
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
  void decay(Decay::Time now);

  // Until end_private_pool, requests of the device facade on streams of which `routed` says so come
  // from the private pool `id` (not 0), and nothing else ever does: for graphs, whose replays use
  // the memory without asking, and for pools of the user's. Of several that are open for a stream,
  // the one that was opened last. While a capturing one is open nothing
  // is waited for, queried or given to the driver, and fences are recorded when the last one has
  // ended. The first call with an `id` makes the pool, each counts as a user of it. Memory of a
  // private pool stays its own until release_private_pool was called as often as
  // begin_private_pool.
  using StreamFilter = PrivatePools::StreamFilter;
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

  // A live block of a private pool, as restore_private_pool() brings it back.
  struct PrivateBlock {
    void* address = nullptr;
    std::size_t size_bytes = 0;
    std::size_t requested_bytes = 0;
  };
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
  using PressureCallback = PressureRounds::Callback;
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
  FigureStore& figure_store() { return figure_store_; }
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);
  std::vector<SegmentDescription> segments() const;

  const HintCounters& hints() const { return hint_counters_; }
  const std::vector<DeviceDescription>& devices() const { return devices_; }
  const CountingRuntime& runtime() const { return runtime_; }
  const Configuration& configuration() const { return configuration_; }
  std::size_t budget_bytes() const;
  // kManaged or kOrdinary.
  HostBacking host_backing() const { return span_memory_.host_backing(); }
  // How much of the device's memory this process can still have, given the driver's answer, by the
  // budgets. A limit that the program itself has set for the device is not looked at: programs know
  // that, and compare with other allocators' figures.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Begins or ends a trace of everything the allocator does (trace_recorder.hpp). Returns an empty
  // string, or in one line why not.
  std::string start_trace(const std::string& file);
  void stop_trace() noexcept {
    if (!in_forked_child()) trace_.stop();
  }
  void mark_trace(std::string_view text) noexcept {
    if (!in_forked_child()) trace_.mark(text);
  }

  // Around a fork: called by Forks, with all allocators' in turn.
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
  bool in_forked_child() const { return forked_child_.load(std::memory_order_relaxed); }

  // Aborts with a line that names what is broken.
  void check_invariants() const;

 private:
  struct Request {
    Facade facade;
    int device;
    std::size_t size_bytes;  // rounded
    std::size_t requested_bytes;
    StreamHandle stream;
    PoolClass pool_class;
    PoolIndex pools;  // the stream's first
    // What is to be cut out of a block of size_bytes, where it need not be its beginning.
    struct Aligned {
      std::size_t to_bytes = 0;  // 0: it is its beginning
      std::size_t size_bytes = 0;
    };
    Aligned aligned = {};
    PoolIndex pool() const { return pools + static_cast<PoolIndex>(pool_class); }
  };
  struct Found {
    RunBlock* block = nullptr;
    bool from_cache = true;
    // Pages of it that are not where they will be used.
    char* populate = nullptr;
    std::size_t populate_bytes = 0;
  };

  static constexpr RuntimeStatus kOverBudget{RuntimeError::kOutOfMemory, 0, "the budget is used up",
                                             "budget"};
  static constexpr RuntimeStatus kOverDeviceLimit{RuntimeError::kOutOfMemory, 0,
                                                  "the device's limit is reached", "device limit"};

  void* allocate_slowly(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
                        std::size_t alignment_bytes = 0);
  inline void* allocate_from_pool(ThreadCache* cache, const Request& request);
  void tidy(ThreadCache* cache, const Request& request) noexcept;
  void keep_no_large(const Request& request);
  void* allocate_small(const Request& request);
  void* allocate_run(const Request& request);
  SmallArenas::Segment take_small_segment(PoolIndex pool, SmallArenas::Growth most) noexcept;
  RunBlock* add_page_for_small(Pool& pool, SmallArenas::Growth most);
  void leave_small_segment(void* base) noexcept;
  // Towards room for a small object, in this order: as for others, but for guests and what is away.
  enum class SmallStep : std::uint8_t {
    kOtherThreads,  // their spare objects, before any new page
    kOwnMemory,     // fences are waited for before the device's own memory is exceeded
    kNewPage,
    kFences,
    kDecay,
    kCallbacks,
    kRelease,
    kAnyFacade,      // pages of other facades' spans
    kMoreCallbacks,  // the steps from kCallbacks on again, if a callback has freed something
    kReserve,        // pages beyond the budget
    kRetry,
  };
  // A request for a small object on its way.
  struct SmallNeed {
    const Request& request;
    SmallStep next = SmallStep::kOtherThreads;
    unsigned retries = 0;
    SmallArenas::Growth most = SmallArenas::Growth::kFreeMemory;
    bool took_page = false;
    bool thread_is_past = false;                   // no arena serves this thread any more
    RuntimeStatus status = {};                     // why no page could be had
    std::optional<PressureRounds> callbacks = {};  // from kCallbacks on
    bool has_callback_freed = false;
    bool has_released = false;
  };
  Block* refill(SmallNeed* need);
  bool make_room_for_small(SmallNeed* need);
  bool take_step(SmallStep step, SmallNeed* need);
  bool has_room_for_page(const SmallNeed& need, bool any_facade) const;
  bool has_page_for_small(SmallNeed* need);

  Found find_cached(const Request& request);
  RunBlock* take_guest(const Request& request, PoolIndex pools);
  Found recall(const Request& request);
  bool reclaim(PoolIndex pools, ThreadCache::Kept kept, bool* any_large);
  void reclaim_all();
  Found borrow(const Request& request);
  Found grow(const Request& request, bool any_facade, RuntimeStatus* status);
  struct Growth {
    SpanStore::Run run;
    std::size_t size_bytes = 0;
  };
  RunBlock* add_run(const SpanStore::Run& run, std::size_t size_bytes, Pool& pool, HintPlan* plan);
  Growth plan_growth(const Request& request, bool any_facade) const;
  bool decay_under_pressure();
  void release_under_pressure(const Request& request, bool* has_released);
  Found under_pressure(const Request& request, RuntimeStatus* status);
  Found search_under_pressure(const Request& request);
  Found release_and_grow(const Request& request, bool* has_released, RuntimeStatus* status);
  PressureRounds pressure_rounds(const Request& request);
  // Blocks of all threads.
  struct BlockBytes {
    std::int64_t live = 0;
    std::int64_t freed = 0;  // since the start
  };
  BlockBytes block_bytes();
  bool has_room_if_all_is_free(const Request& request);
  bool exceeds_limits(const Request& request) const;
  Found steal_from_other_streams(const Request& request);
  [[gnu::always_inline]] inline void* occupy(const Request& request, Block* block, PoolIndex home);
  void* hand_out(const Request& request, Found found);
  RuntimeStatus add_span(const Request& request);
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});
  void send_pending_hints(const DeviceStream& user = {});
  void forget_hint(const Hint& hint);
  static void forget_advice(Advice advice, SegmentPlacement* placement);
  // Hints that are planned with the lock and sent when its scope ends, however it does. Made before
  // locks are taken.
  class PlannedHints {
   public:
    PlannedHints(CachingManagedAllocator& owner, int device) : owner_(owner), device_(device) {}
    ~PlannedHints() {
      if (!plan.empty()) owner_.send(plan, device_);
    }
    PlannedHints(const PlannedHints&) = delete;
    PlannedHints& operator=(const PlannedHints&) = delete;
    HintPlan plan;

   private:
    CachingManagedAllocator& owner_;
    const int device_;
  };
  static void throw_if_broken(const Request& request, const RuntimeStatus& status);
  [[noreturn]] void out_of_memory(const Request& request, const RuntimeStatus& status);

  FreeResult free_slowly(void* address) noexcept;
  FreeResult report_misuse(const void* address) const noexcept;
  void give_back_to_pool(RunBlock* block) noexcept;
  void give_back_plain(Block* block) noexcept;
  void give_back(BlockChain blocks) noexcept;
  // Blocks with nobody, which go back to their pools when its scope ends, however it does. Made
  // before locks are taken.
  class Returning {
   public:
    explicit Returning(CachingManagedAllocator& owner) : owner_(owner) {}
    ~Returning() { now(); }
    Returning(const Returning&) = delete;
    Returning& operator=(const Returning&) = delete;
    void now() { owner_.give_back(std::move(blocks)); }
    BlockChain blocks;

   private:
    CachingManagedAllocator& owner_;
  };
  MovedStorage* record_for(Block* block, const Move& move);
  void drop_record(MovedStorage* record);
  void check_place(Place place) const;
  void require_device() const;
  bool is_on_a_device(const void* address, std::size_t size_bytes) const;
  void add_use(Block* block, DeviceStream use);
  void prepare_uses(Block* block, std::size_t count);
  bool is_used_by_host(const Block& block) const;
  void copy_for_child(std::size_t available_bytes);
  void forget_in_private_pools(const std::vector<PoolIndex>& streams, const DeviceStream& nameless);
  void note_thread_end(const std::vector<PoolIndex>& streams) noexcept;
  void orphan(PoolIndex first, std::optional<Fence> last_work) noexcept;
  void take_over_pools(const StreamKey& key);
  void reclaim_all_and_fenced(const Request& request);
  void free_spans(std::vector<std::unique_ptr<Span>> spans) noexcept;
  using PoolFilter = std::function<bool(const Pool&)>;
  std::size_t release_pages(std::size_t most_bytes);
  static DeviceStream consumer_of(const Request& request) {
    return request.facade == Facade::kDevice ? DeviceStream::named(request.device, request.stream)
                                             : DeviceStream{};
  }
  PrivatePools::Scope private_scope_of(int device, StreamHandle stream);
  void restore_block(int device, std::uint64_t id, const PrivateBlock& wanted);
  void release_cached_where(const PoolFilter& wanted);
  std::vector<const Span*> idle_spans(const PoolFilter& wanted) const;
  std::size_t idle_bytes() const;
  void release_surplus_spans(const Request& request);
  void leave(const BlockPools::Pages& pages, const Pool& pool);
  // What leaves the pools in one release.
  struct Departure {
    bool is_of_all = false;       // all whole pages, and nothing else says what goes
    std::set<const Span*> spans;  // whose pages all go
    std::size_t pages_bytes = 0;  // that still go, of spans that give pages back
    std::size_t left_bytes = 0;   // that have gone
    std::vector<Fence> fences;    // of blocks that have gone
  };
  Departure departure_of(const PoolFilter& wanted, std::size_t most_bytes) const;
  void leave_free_pages(const Pool& pool, Departure* departure);
  std::size_t release_pages_of(const PoolFilter& wanted, std::size_t most_bytes);
  bool is_capturing() const { return private_pools_.is_capturing(); }
  bool may_release(const Pool& pool) const;
  // On the longer ways through the allocator, which steady programs seldom take (look_up()).
  void decay_now_and_then() {
    if (decay_.enabled()) [[unlikely]]
      decay_every_so_often();
  }
  void decay_every_so_often();
  void decay_if_memory_allows() noexcept;
  bool is_decay_due(Decay::Time now) const;
  void discard_free_pages();
  void discard_free_pages_of(Span* span);
  bool try_to_discard(const SpanStore::Run& run) noexcept;

  // Of a stream, by its first: where blocks of whole pages are free, guests among them.
  Pool& whole_pool(PoolIndex pools) {
    return pools_.at(pools + static_cast<PoolIndex>(PoolClass::kWhole));
  }
  bool is_block_live(const Block* block) const {
    return block != nullptr && block->now() == BlockState::kLive;
  }
  void count_allocation(const Request& request, Block& block, bool from_cache) noexcept;
  void open_to_count(ThreadCache* cache, const StreamKey& key, PoolIndex first, bool again = false);
  void count_free(const Block& block, const StreamKey& key) noexcept;
  void note_peaks(std::size_t place) noexcept;
  void look_up(std::size_t place) noexcept;
  void lend_pages(const Block& block, PoolIndex from, PoolIndex to);
  std::size_t limit_of(const StreamKey& key) const;
  RuntimeStatus check_limits(const StreamKey& key, std::size_t touched_bytes,
                             std::size_t pool_bytes, std::size_t beyond_budget_bytes = 0) const;
  std::size_t beyond_budget_bytes(SmallArenas::Growth most) const;
  bool would_leave_device(const Request& request) const;
  bool wait_before_leaving_device(const Request& request);
  void change_budget_for_conversion(std::size_t size_bytes, bool grows);
  std::string advice_on(const Request& request, const RuntimeStatus& status) const;
  std::string advice_on_refusal() const;
  const Configuration configuration_;
  CountingRuntime runtime_;
  std::vector<DeviceDescription> devices_;
  MachineBudget budget_;  // guarded by lock_
  SpanMemory span_memory_;
  FigureStore figure_store_;
  HintCounters& hint_counters_;
  EventPool events_;
  StreamWork stream_work_;
  HintSender sender_;
  TraceRecorder trace_;

  Ranked<std::mutex, LockRank::kRelease> release_mutex_;
  SmallArenas small_arenas_;
  ThreadCaches caches_;
  mutable StateLock lock_;  // guards everything below that does not say otherwise
  ResidencyLedger ledger_;
  PlacementPlanner planner_;
  SpanStore spans_;
  BlockPools pools_;
  PrivatePools private_pools_;
  StatisticsBook book_;
  FencedBlocks fenced_;
  struct LeavingPages {
    static constexpr int kNobody = -1;
    BlockPools::Pages pages;
    int user_device = kNobody;  // that may still work on them, beside their span's
  };
  // Of no pool any more and not yet their spans'. Has room for all pages of arenas.
  std::vector<LeavingPages> leaving_pages_;
  // For pages that were added for arenas: planned, and not sent yet.
  struct PendingHints {
    HintPlan plan;
    int device = 0;
    DeviceStream user;  // of the pages; none for a host facade
  };
  std::vector<PendingHints> pending_hints_;
  Recycled<MovedStorage> records_;          // of moves
  std::vector<std::size_t> device_limits_;  // of the device facade, by device
  ForkSnapshot fork_snapshot_;
  Decay decay_;
  std::size_t kept_by_threads_bytes_ = 0;  // when they were last looked at for it
  PressureRounds::Callbacks pressure_callbacks_;
  std::size_t orphaned_streams_ = 0;  // whose pools are Pool::is_orphaned
  std::atomic<unsigned> long_ways_ = 0;
  std::optional<ThreadCaches::Frozen> frozen_;  // while a fork is under way
  std::atomic<bool> forked_child_ = false;
  ChildMemory child_memory_;
};

// With the lock: gives a taken block, of that home, to the caller, with its pair of records.
[[gnu::always_inline]] inline void* CachingManagedAllocator::occupy(const Request& request,
                                                                    Block* block, PoolIndex home) {
  // Of whatever class, a block of the same stream is where it belongs.
  block->pool = first_of(home) == request.pools ? home : request.pool();
  // A guest must find its way home when it is freed.
  block->plain = home == block->pool;
  if (home != block->pool) lend_pages(*block, home, block->pool);
  block->exported = false;
  block->real.references = 0;
  block->real.indirect = nullptr;
  std::construct_at(&block->use, request.requested_bytes,
                    place_of_use(request.facade, request.device));
  block->real.attach(&block->use);
  block->set(BlockState::kLive);
  unpoison(block->address(), block->size_bytes());
  return block->address();
}

}  // namespace uvm
