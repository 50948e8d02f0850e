// Queries about memory and about the allocator. They change nothing. Thread-safe. Allocations and
// frees of other threads wait during figures(), segments() and check_invariants().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class HintCounters;
enum class HostBacking : unsigned char;
struct Figures;
struct SegmentDescription;
namespace live {  // include/uvmalloc/use_range.hpp
struct LiveFigures;
}
namespace sharing {
struct SharingFigures;
}

// How much of this allocator's memory a device has, in whole 2 MiB pages.
struct DeviceResidency {
  std::size_t believed_bytes = 0;         // by the records of hints and moves
  std::optional<std::size_t> real_bytes;  // by the driver, if it reports where pages are
};

class Inspection {
 public:
  explicit Inspection(Engine& engine) : engine_(&engine) {}

  // Returns how many bytes of the 2 MiB pages that the range touches are at each place by the
  // records of hints and moves; page faults are not seen. Leaves out places without bytes. Cuts the
  // range to the block that holds `address`. Returns an empty map if there is no such block.
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;

  // Same as residency(), but reads the places from the driver, in parts of 64 KiB. Throws
  // std::runtime_error if the driver does not report places (capabilities.finds_pages), or if the
  // call fails.
  std::map<Place, std::size_t> exact_residency(const void* address, std::size_t size_bytes) const;

  // Calls the driver once for each span, if the driver reports where pages are.
  DeviceResidency device_residency(int device) const;

  // Returns whether `address` is in memory that this allocator got from the driver, used or not. Do
  // not let the driver free such an address, because that would free all blocks in the same span.
  bool has_taken(const void* address) const;

  // Returns the figures that the report shows.
  Figures figures() const;
  live::LiveFigures live_figures() const;
  // Returns figures by device; empty unless UVMALLOC_SHARE is on.
  std::vector<sharing::SharingFigures> sharing_figures() const;
  std::vector<SegmentDescription> segments() const;

  // These references are valid as long as the allocator lives.
  const HintCounters& hints() const;
  const std::vector<DeviceDescription>& devices() const;
  const DeviceRuntime& runtime() const;
  // The number of calls of each DeviceRuntime method so far. Leaves out methods without calls.
  std::map<std::string, std::uint64_t> runtime_calls() const;
  const Configuration& configuration() const;
  // Returns kManaged or kOrdinary.
  HostBacking host_backing() const;

  // Returns whether this process is a forked child of the process that made the allocator. In a
  // forked child
  //  * live host blocks keep their addresses and contents. Blocks in managed memory were copied, up
  //    to Configuration::fork_limit_bytes; the kernel shares ordinary memory, copy on write.
  //  * allocate() serves host and pinned requests from malloc. free() frees these blocks; for
  //    blocks of the parent it returns kFreed and does nothing.
  //  * find() and the figures describe the moment of the fork.
  //  * no other memory belongs to the allocator: functions with an address argument return false,
  //    nullptr or nothing, and functions that give memory back do nothing.
  //  * functions that need the device throw std::runtime_error: allocate(), and begin(), retain()
  //    and restore() of PrivatePools.
  // No function waits for a lock that a thread of the parent held, or calls the driver.
  bool in_forked_child() const;

  // Checks the invariants. If one is broken, aborts with a line that names it.
  void check_invariants() const;

 private:
  Engine* engine_;
};

inline Inspection CachingManagedAllocator::inspection() const {
  return Inspection(*engine_);
}

}  // namespace uvm
