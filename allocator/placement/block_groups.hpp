// Groups of blocks. The owner of the groups numbers them (groups/groups.hpp). The pages of a group
// are the 2 MiB pages in which all live bytes belong to blocks of the group, so no other memory
// moves with these pages. The functions act on whole pages. Only discard() changes contents.
//
// Thread-safe. In a forked child no page moves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/groups.hpp>
#include <uvmalloc/place.hpp>
#include <uvmalloc/use_range.hpp>
#include "allocator/placement/bulk_moves.hpp"
#include "allocator/placement/live_planner.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "storage/pages.hpp"

namespace uvm {

inline constexpr GroupNumber kNoGroup{0};

// The allocator's memory that belongs to a group.
struct GroupMemory {
  std::size_t blocks = 0;
  std::size_t bytes = 0;  // as requested
  // The pages by the device that uses the blocks; pages of blocks of host memory that the host uses
  // are not listed. No PageSpan reaches from one span of the allocator into another.
  std::map<int, std::vector<PageSpan>> pages;
  std::vector<PageSpan> ordinary;  // of all these pages, those of ordinary memory
};

// Calls `visit` for runs of pages whose place satisfies `wanted`. `places`: the place of each page,
// or empty.
template <class Wanted, class Visit>
void each_run(const PageSpan& pages, const std::vector<Place>& places, Wanted wanted, Visit visit) {
  for (auto first = places.begin(); first != places.end();) {
    first = std::find_if(first, places.end(), wanted);
    const auto end = std::find_if_not(first, places.end(), wanted);
    const auto at = static_cast<std::size_t>(first - places.begin());
    if (first != end) visit(PageSpan{pages.first + at, static_cast<std::size_t>(end - first)});
    first = end;
  }
}

class BlockGroups {
 public:
  BlockGroups(Machine& machine, HeapState& state, HintDispatcher& hints, LivePlanner& live)
      : machine_(machine), state_(state), hints_(hints), live_(live), bulk_(machine) {}
  BlockGroups(const BlockGroups&) = delete;
  BlockGroups& operator=(const BlockGroups&) = delete;

  // The owner of the groups is called when a block of a group is freed, without locks, before the
  // memory serves another request. It must not throw. Set once, before the first put().
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void block_freed(GroupNumber group, const char* address,
                             std::size_t size_bytes) noexcept = 0;
    virtual std::vector<GroupFigures> all_figures() const = 0;
    // Called before a kernel or graph that uses these pages of the group is launched.
    virtual void group_used(GroupNumber group, const PageSpan& pages,
                            const DeviceStream& stream) noexcept = 0;
    // Called after many consecutive kernels have used no group.
    virtual void groups_unused() noexcept = 0;
  };
  // nullptr: the program has no groups.
  std::shared_ptr<Owner> owner() const;
  // Returns the owner. If there is none yet, calls `make` to make it.
  std::shared_ptr<Owner> owner(const std::function<std::shared_ptr<Owner>()>& make);

  // Puts the live block that holds `address` into a group, and takes the block out of its previous
  // group. Returns false if `address` is in no live block.
  bool put(const void* address, GroupNumber group);
  // Returns kNoGroup if `address` is in no live block, or if that block is in no group.
  GroupNumber group_of(const void* address) const;
  // Takes a block out of its group because it is being freed.
  GroupNumber leave(const LockedHeap& heap, const Block& block) noexcept;
  void note_freed(GroupNumber group, const Block& block) noexcept;

  GroupMemory memory_of(GroupNumber group) const;
  // Returns the places of the pages according to the records of hints and moves.
  std::vector<Place> places_of(const PageSpan& pages) const;

  // Returns the places that the driver reports; empty if it reports none.
  std::vector<Place> found_places(const PageSpan& pages, int device) const;
  // Same as places_of(), but a page also counts as on the device if the driver reports it there,
  // because a kernel may have brought the page back.
  std::vector<Place> real_places_of(const PageSpan& pages, int device) const;

  // Sends all pages to the host after the current work of `stream`. Pages that a kernel has brought
  // back to the device are sent too, so this also calls the driver for pages that are on the host
  // according to the records.
  void leave(std::span<const PageSpan> pages, const DeviceStream& stream);
  // Sends pages that are not on the device of `stream` to that device. Later work of `stream` waits
  // for these pages. If moves of this device are planned, only as many pages are sent as the plan
  // has room for. Returns the bytes that are sent. Without `waits`, the stream waits for pages only
  // by wait_for(), unless moves are planned or a prefetch waits for its copy.
  std::size_t come(std::span<const PageSpan> pages, const DeviceStream& stream, bool waits = true);
  // Makes later work of the stream wait for those of the pages that are still in flight to the
  // device. Returns whether pages are in flight for which no stream waits yet.
  bool wait_for(const PageSpan& pages, const DeviceStream& stream) {
    return bulk_.wait_for(pages, stream);
  }
  // Corrects the record of pages that are on the device according to the record, but on the host
  // according to the driver.
  void find_evicted(std::span<const PageSpan> pages, int device);
  // Notes that the pages are on the host, because their memory is new.
  void note_on_host(std::span<const PageSpan> pages);
  // Advises the pages, in the context of `device`.
  void advise(std::span<const PageSpan> pages, const WantedPlacement& wanted, int device);
  // Discards the contents of the pages, which no work may be using. A device may refuse.
  void discard(std::span<const PageSpan> pages, int device);

  // Sets whether the owner is notified of uses of groups.
  void want_uses(bool wanted) noexcept;
  void note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses) noexcept;

  // Returns the bytes of pages that the device of `stream` has room for, according to the records
  // of hints and moves. While moves are planned, first evicts pages of free memory.
  std::size_t room_bytes(const DeviceStream& stream);
  bool is_planned(int device) const { return live_.plans_for(device); }

  // Forgets the streams of a device whose context was destroyed.
  void forget_device(int device) noexcept { bulk_.forget_device(device); }

 private:
  static GroupNumber group_of(const LockedHeap& heap, const Block& block);
  std::size_t move_run(const PageSpan& run, Place destination, const DeviceStream& stream,
                       bool waits = true);

  Machine& machine_;
  HeapState& state_;
  HintDispatcher& hints_;
  LivePlanner& live_;
  BulkMoves bulk_;
  std::atomic<bool> wants_uses_{false};
  std::atomic<std::size_t> unrelated_kernels_{0};  // consecutive; while uses are wanted
  std::shared_ptr<Owner> owner_ UVM_GUARDED_BY(state_);
};

}  // namespace uvm
