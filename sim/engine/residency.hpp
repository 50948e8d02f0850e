// Tracks the locations of pages of managed memory and applies the rules by which pages migrate:
// kernel touches, prefetch, discard, eviction, and explicit copies. Page numbers run through the
// managed arena, then through the address space of ordinary memory, if devices can access it.
//
// Touches by the host's own code count only if the caller reports them (touch_by_host). Otherwise a
// page that only the host has touched counts as not resident ("nowhere"), and a page on a device
// stays on the device while the host reads it. The bytes are correct in both cases.
//
// Owns the blocks; refers to the devices' memory and to the counters of the machine. Guarded by the
// machine's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/block_table.hpp"
#include "sim/engine/device_memory.hpp"
#include "sim/engine/host_memory.hpp"
#include "sim/engine/machine_rules.hpp"
#include "sim/engine/page_mover.hpp"
#include "sim/engine/page_range.hpp"
#include "sim/engine/policy.hpp"
#include "sim/engine/span_map.hpp"
#include "sim/engine/status.hpp"
#include "sim/engine/thrashing.hpp"

namespace uvmsim {

class Residency {
 public:
  // Returns whether a device may use another device's memory in place.
  using Reaches = std::function<bool(int device, int other)>;
  using Mapped = PageMover::Mapped;

  Residency(std::size_t arena_blocks, std::vector<DeviceMemory>& memories, HostMemory& host,
            uvmsim_counters& counters, Reaches reaches, Mapped mapped,
            const MachineRules& rules = {});

  // Returns whether all pages of the blocks of `pages` are only at `location`, and no page is
  // discarded or mapped. If so, a touch by a kernel of `location` changes nothing, under any
  // policy.
  bool is_whole_at(int location, PageRange pages);

  // Serves a kernel of `device` that touches `pages`, which all have the same policy. Further pages
  // migrate with them only within `range`, which has the same policy. Returns kOutOfMemory if there
  // is no free chunk or host memory; some pages have moved by then.
  Status touch(int device, PageRange pages, PageRange range, const Policy& policy, Access access);

  // Serves a touch, by the host's own code, of a page that the host cannot access. `range` is as
  // for touch(). Afterwards the host can access the pages in `out_mapped`, which include this page,
  // without a fault, until left_host is called.
  Status touch_by_host(std::size_t page, PageRange range, const Policy& policy, Access access,
                       PageRange* out_mapped);
  void set_left_host(PageMover::LeftHost left_host) { mover_.set_left_host(std::move(left_host)); }

  // Applies advice for `pages` to `policies`; index 0 of `policies` is page `base`. Removes the
  // mappings and copies that the advice ends.
  void advise(SpanMap<Policy>* policies, std::size_t base, PageRange pages, Advice advice,
              int location);

  // Makes all pages resident at `location`, and marks them as not discarded. Keeps other copies if
  // the policy is read-mostly. Returns the same errors as touch().
  Status prefetch(int location, PageRange pages, const Policy& policy);

  // Marks the contents of the pages as discarded. Skips pages that are nowhere.
  void discard(PageRange pages);

  // Serves an explicit copy that reads or writes the pages in place. Pages that are nowhere become
  // resident at `location`.
  Status copy_access(int location, PageRange pages, bool write);

  // Ends read duplication: keeps one copy of each page, if possible the copy at `preferred`.
  void collapse(PageRange pages, int preferred = kNoLocation);

  // Removes devices' remote mappings of the pages. Used after read duplication was switched on and,
  // for one device, after that device became the preferred location.
  void unmap_remote(PageRange pages, int device = kNoLocation);

  // Frees the pages. Releases chunks without remaining pages.
  void forget(PageRange pages);

  // Frees pages of ordinary memory that the program has unmapped.
  void forget_unmapped() { mover_.drop_unmapped(); }

  // Evicts until `bytes` are free on the device. Returns false if that is impossible.
  bool make_room(int device, std::size_t bytes) { return mover_.make_room(device, bytes); }

  // Returns the number of blocks in the range that had a resident page since the allocation.
  std::uint64_t populated_blocks(PageRange pages) const;

  // Returns the number of pages of the range at `location`.
  std::size_t resident_pages(int location, std::size_t page, std::size_t count) const;
  bool is_resident(int location, std::size_t page) const {
    return resident_pages(location, page, 1) != 0;
  }

  // For tests: describes an inconsistency; empty if all is consistent.
  std::string broken_invariant() const { return mover_.broken_invariant(); }

  // Returns the work done since the last call.
  PlacementWork take_work() { return mover_.take_work(); }
  bool has_work() const { return mover_.has_work(); }

 private:
  using Others = PageMover::Others;
  // A kernel's access to the pages of one block.
  struct Fault {
    int device;
    PageMask range;  // pages that may migrate together with the fault's pages
    const Policy& policy;
    Access access;
  };
  // The destinations of pages that a device touches but that are not on the device.
  struct Destinations {
    PageMask here;
    PageMask at_preferred;  // migrate to the preferred location, and are used in place
    PageMask in_place;      // do not migrate, and are used in place
  };

  Status touch_block(const Fault& fault, Block& block, const PageMask& pages);
  Status touch_single(const Fault& fault, Block& block, const PageMask& pages);
  Status touch_read_mostly(const Fault& fault, Block& block, const PageMask& pages);
  Status touch_shared_memory(Block& block, const PageMask& pages);
  Destinations destinations(const Fault& fault, const Block& block, const PageMask& missing) const;
  Status bring_by_faults(const Fault& fault, int location, Block& block, PageMask missing,
                         const PageMask& eligible, Others others);
  Status pin(const Fault& fault, Block& block, PageMask* missing);
  bool fills_block(const Fault& fault, const Block& block) const;
  Status bring_to_host(Block& block, const PageMask& arriving, const Policy& policy, Access access);
  void use_remotely(int device, Block& block, const PageMask& pages, bool faults);
  Status count_accesses(int device, Block& block, const PageMask& pages);
  bool can_use_in_place(int device, int location) const;
  PageMask usable_in_place(int device, const Block& block) const;
  int placed_at(int location) const { return rules_.memory.shares_host ? kHost : location; }

  int device_count() const { return static_cast<int>(memories_.size()); }

  std::vector<DeviceMemory>& memories_;
  uvmsim_counters& counters_;
  Reaches reaches_;
  MachineRules rules_;
  BlockTable blocks_;
  PageMover mover_;
  Thrashing thrashing_;
};

}  // namespace uvmsim
