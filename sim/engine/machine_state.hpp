// The state of the machine, and the one mutex that guards all of it. SharedState::lock() is the
// only way to the state, so a function of MachineState, or one that takes a MachineState&, runs
// with the mutex locked. The parts of the machine (such as memory.hpp) unlock the mutex before the
// program's code, a copy of bytes or another library runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/engine/allocation.hpp"
#include "sim/engine/arena.hpp"
#include "sim/engine/capture.hpp"
#include "sim/engine/cost_model.hpp"
#include "sim/engine/device_memory.hpp"
#include "sim/engine/host_memory.hpp"
#include "sim/engine/host_touches.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/ordinary_memory.hpp"
#include "sim/engine/pools.hpp"
#include "sim/engine/residency.hpp"
#include "sim/engine/settings.hpp"
#include "sim/engine/timeline.hpp"
#include "sim/engine/virtual_memory.hpp"

namespace uvmsim {

struct MachineState {
  explicit MachineState(const Settings& settings);

  // ---- which memory an address is in Returns the record that contains the whole range: an
  // allocation, or the record of ordinary memory if devices can access it. Otherwise returns null.
  AllocationRecord* record_of(MemoryRange range);
  // Returns null if devices cannot access ordinary memory, or if part of the range is unmapped or
  // belongs to the machine.
  AllocationRecord* ordinary_record(MemoryRange range);
  // Returns the record of the range if its pages can migrate, else null.
  AllocationRecord* placed_record(MemoryRange range);
  // Drops the state of unmapped memory. The machine does not see when the program unmaps memory, so
  // this function checks the mappings.
  void forget_unmapped();
  // Return the numbers of the pages that the range touches, and of the record's first page.
  PageRange pages_of(const AllocationRecord& record, MemoryRange range) const;
  std::size_t first_page_of(const AllocationRecord& record) const;
  std::byte* view_of(const AllocationRecord* record, std::uintptr_t address);

  // ---- allocations and what they take from devices and host
  DeviceMemory& memory(int device) { return memories[static_cast<std::size_t>(device)]; }
  // Evicts like Residency::make_room(); the calling thread waits for the evictions.
  bool make_room(int device, std::size_t bytes);
  // Describes a new allocation by the calling thread, for allocations.add().
  Allocation describe(MemoryKind kind, const void* address, std::size_t bytes, int device,
                      unsigned flags);
  Status take_device_memory(int device, std::size_t bytes, PoolHandle pool, void** out);
  // For managed memory, and device memory that this process allocated. Addresses that are kept back
  // are not reused for a while. So a program that still uses them does not access other memory.
  enum class Addresses { kReuse, kKeepBack };
  void remove_allocation(const AllocationRecord& record, Addresses addresses);

  // ---- work
  std::uint64_t call_ns() const { return static_cast<std::uint64_t>(costs.costs().call_ns); }
  // Ends a capture on the stream, if there is one, because the stream ends. Appends the graph of
  // the capture, which must be destroyed without the lock.
  void end_capture_of(Stream& stream, std::vector<std::shared_ptr<Graph>>* graphs);

  const Settings settings;
  const CostModel costs;
  uvmsim_counters& counters;

  std::vector<DeviceMemory> memories;  // by device
  HostMemory host;
  Arena managed;
  Arena device_only;
  const std::unique_ptr<OrdinaryMemory> ordinary;  // null if devices cannot access ordinary memory
  std::set<std::pair<int, int>> peers;  // (device, peer): the device may use the peer's memory
  Residency residency;
  std::unique_ptr<HostTouches> host_touches;  // null if host touches are not tracked
  AllocationTable allocations;
  std::uint64_t next_allocation_id = 1;
  std::deque<Allocation> kept_back;  // freed, the oldest first; their addresses are not yet reused
  std::size_t kept_back_bytes = 0;
  PoolTable pools;
  VirtualMemory virtual_memory;
  std::vector<std::uintptr_t> known_mappings;  // addresses of the records of virtual_memory's runs
  struct Import {
    void* address;
    int uses;
  };
  // The key is the exporting process and the allocation's ID in that process.
  std::map<std::pair<int, std::uint64_t>, Import> imports;

  Timeline timeline;
  Captures captures;
  std::unordered_map<GraphHandle, std::shared_ptr<Graph>> graphs;
  std::unordered_map<GraphExecHandle, std::shared_ptr<GraphExec>> graph_execs;

 private:
  Arena& arena_of(const Allocation& allocation) {
    return allocation.kind == MemoryKind::kManaged ? managed : device_only;
  }
  // Charges unevictable memory to the device, and to the host if devices share its memory.
  bool charge_device(int device, std::size_t bytes);
  void release_device(int device, std::size_t bytes);
  void keep_back(const Allocation& ended);
};

class SharedState {
 public:
  explicit SharedState(const Settings& settings) : state_(settings) {}

  class Lock {
   public:
    Lock(MachineState& state, std::unique_lock<std::mutex> lock)
        : state_(&state), lock_(std::move(lock)) {}
    MachineState* operator->() const { return state_; }
    MachineState& operator*() const { return *state_; }
    // Ends the use of the state.
    void unlock() {
      state_ = nullptr;
      lock_.unlock();
    }

   private:
    MachineState* state_;
    std::unique_lock<std::mutex> lock_;
  };
  Lock lock() { return {state_, std::unique_lock(mutex_)}; }

  // A fork takes the lock. Parent and child get it back by adopt().
  void lock_for_fork() { mutex_.lock(); }
  Lock adopt() { return {state_, std::unique_lock(mutex_, std::adopt_lock)}; }

  // Return values that never change.
  const Settings& settings() const { return state_.settings; }
  const CostModel& costs() const { return state_.costs; }

 private:
  std::mutex mutex_;
  MachineState state_;
};

}  // namespace uvmsim
