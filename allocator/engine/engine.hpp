// Owns the parts of an allocator and gives each part references to the parts that it uses.
//
// Locks, in the order in which they may be taken (ARCHITECTURE.md has all of them). The first three
// serialise slow work and may be held across driver calls, so that a second thread short of memory
// waits for the result of the first thread instead of repeating its work. The other locks are never
// held across a driver call (invariant 13).
//   Reclaimer      one thread at a time gives cached memory back
//   FencedBlocks   one thread at a time collects blocks with finished fences
//   HintDispatcher one thread at a time sends pending hints
//   SmallArenas    one thread at a time uses the arenas
//   ThreadCaches   the list of caches, then the caches' own locks (a stopped world)
//   HeapState      pools, spans, records of blocks without an owner, ledger, statistics
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/block_finder.hpp"
#include "allocator/engine/device_reset.hpp"
#include "allocator/engine/escalation.hpp"
#include "allocator/engine/page_grower.hpp"
#include "allocator/engine/small_allocator.hpp"
#include "allocator/fork/fork_guard.hpp"
#include "allocator/inspection/introspection.hpp"
#include "allocator/inspection/out_of_memory_report.hpp"
#include "allocator/placement/block_groups.hpp"
#include "allocator/placement/live_planner.hpp"
#include "allocator/placement/mover.hpp"
#include "allocator/placement/spill_limit.hpp"
#include "allocator/reclaim/idle_decay.hpp"
#include "allocator/reclaim/large_block_caching.hpp"
#include "allocator/reclaim/pressure_callbacks.hpp"
#include "allocator/reclaim/reclaimer.hpp"
#include "allocator/small/small_arenas.hpp"
#include "allocator/state/block_counts.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/charges.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/state/machine.hpp"
#include "allocator/state/request.hpp"
#include "allocator/streams/fenced_blocks.hpp"
#include "allocator/streams/private_memory.hpp"
#include "allocator/streams/stream_pools.hpp"
#include "allocator/streams/stream_uses.hpp"
#include "hints/sharing/device_sharing.hpp"

namespace uvm {

struct Engine final : private ReturnsBlocks, private MakesRoom, private SmallArenas::SegmentSource {
  Engine(std::unique_ptr<DeviceRuntime> runtime, const Configuration& configuration,
         const std::string& figures_file);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- fast_path.cpp
  [[gnu::always_inline]] inline void* allocate(Facade facade, int device, std::size_t size_bytes,
                                               StreamHandle stream);
  [[gnu::always_inline]] inline FreeResult free(void* address) noexcept;

  // Starts a trace, which begins with all live blocks; stops the world while these are listed.
  // Returns an empty string, or the reason why no trace was started.
  std::string start_trace(const std::string& file);

  // ---- slow_path.cpp: what the fast path cannot serve

  // Allocates for a stream that the thread's cache does not know, or with an alignment.
  // `own_pool`: the private pool that serves the request if none of the program does; 0: none.
  void* allocate_slow(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
                      std::size_t alignment_bytes = 0, std::uint64_t own_pool = 0);
  // `block` is the block that starts at the address, or nullptr if it was not looked up yet.
  FreeResult free_slow(void* address, Block* block) noexcept;
  // Reads from the driver how much memory is free on devices that fill up. Starts to plan moves for
  // each device with a prefetch that did not fit in the soft budget.
  void follow_placement();
  // Called before a kernel that uses `ranges`: waits for a turn on the device, and plans moves.
  void note_uses(int device, StreamHandle stream, std::span<const live::UseRange> ranges,
                 live::Launch launch) noexcept;
  // As CachingManagedAllocator::allocate(), in the private pool `own_pool` if none of the program
  // serves the request; 0: in no such pool.
  void* allocate_in(std::uint64_t own_pool, Facade facade, int device, std::size_t size_bytes,
                    StreamHandle stream);
  // Replaces allocate() while moves are planned.
  void* allocate_watched(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
                         std::uint64_t own_pool = 0);
  // Reports an allocated block to the plan of moves. If the settings make a thrashing program fail,
  // frees the block and throws OutOfMemoryError.
  void note_allocated(void* address, Facade facade, int device, std::size_t size_bytes,
                      StreamHandle stream);
  // Calls `attempt` under the state lock until it succeeds. After each refusal, gives back cached
  // memory and calls pressure callbacks. Throws OutOfMemoryError if no step is left.
  using Attempt = std::function<Refusal(const LockedHeap& heap)>;
  void with_room(const Request& request, const Attempt& attempt);
  // Marks the block that was found as live, and sends the hints of the request.
  void* finish_allocation(const Request& request, Found found);

  Machine machine;
  HeapState state;
  ThreadCaches caches;
  HintDispatcher hints;

 private:
  SmallArenas small_arenas_;
  BlockReturner returner_;
  FencedBlocks fenced_;
  DisplacedBlocks displaced_;
  BlockCounts counts_;
  Charges charges_;
  LargeBlockCaching large_;

 public:
  StreamPools stream_pools;
  Reclaimer reclaimer;
  IdleDecay decay;
  SpillLimit spill_limit;
  PageGrower grower;
  PressureCallbacks pressure_callbacks;
  StreamUses uses;
  Mover mover;
  sharing::DeviceSharing device_sharing;
  LivePlanner live;
  BlockGroups groups;
  DeviceReset device_reset;
  PrivateMemory private_memory;
  Introspection introspection;
  OutOfMemoryReport out_of_memory;
  ForkGuard fork_guard;
  std::function<void()> places_source;  // called before figures are read; updates where blocks are

 private:
  BlockFinder finder_;
  SmallAllocator small_;
  Escalation escalation_;

  void free_block(void* address) noexcept override { free_slow(address, nullptr); }
  void give_back(BlockChain blocks) override { returner_.give_back(std::move(blocks)); }
  void end_thread(BlockChain blocks, const std::vector<StreamIndex>& streams) override;
  void make_room_on_device(const Request& request) override;
  SmallArenas::Segment take_segment(PoolIndex pool, SmallArenas::Growth most) noexcept override {
    return small_.take_segment(pool, most);
  }
  void return_segment(void* base) noexcept override { small_.return_segment(base); }
  bool is_ours(const void* address) const noexcept override { return state.is_ours(address); }

  [[gnu::always_inline]] inline void* allocate_from_pool(ThreadCache* cache,
                                                         const Request& request);
  // Allocate if the stream's pools are known and no block of the thread's cache fits.
  void* allocate_pages(const Request& request, const BlockFinder::Taken& taken);
  void* allocate_small(const Request& request);
  void* allocate_from_cache(ThreadCache* cache, const Request& request, const StreamKey& key,
                            bool may_be_cached, bool may_cache_large);
  // Gives back memory that is unlikely to be used soon. Called after every few large requests.
  void trim_large(ThreadCache* cache, const Request& request) noexcept;
  // Updates the peaks, and gives idle memory back to the driver. Called if a peak may have been
  // passed, or if it is time to read the clock.
  void on_cache_limit(Facade facade, int device) noexcept;
  FreeResult report_misuse(const void* address) const noexcept;
};

}  // namespace uvm
