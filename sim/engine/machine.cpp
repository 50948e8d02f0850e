#include "sim/engine/machine.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <string>

#include "sim/engine/call_table.hpp"
#include "sim/engine/machine_state.hpp"
#include "sim/engine/report.hpp"
#include "sim/engine/thread_context.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

std::atomic<Machine*> made{nullptr};
std::atomic<bool> lost{false};

// Serves the host's touch of an address that the host cannot access. Returns the pages that the
// host can access afterwards.
HostTouches::Range touch_by_host(SharedState& shared, std::uintptr_t address, bool write) {
  const HostTouches::Range page{address, kPageBytes};
  const auto state = shared.lock();
  const AllocationRecord* record = state->allocations.find(address);
  if (record == nullptr || record->placement == nullptr) return page;
  const std::size_t base = state->first_page_of(*record);
  const std::size_t number = state->managed.offset_of(address) / kPageBytes;
  const auto [begin, end] = record->placement->policy.span_of(number - base);
  PageRange mapped{number, number + 1};
  const Status status = state->residency.touch_by_host(
      number, {base + begin, base + end}, record->placement->policy.at(number - base),
      {!write, write, state->timeline.now_ns()}, &mapped);
  state->timeline.run_on_host(record->allocation.device,
                              state->costs.phases(state->residency.take_work()));
  // If the host has no memory left, the touch proceeds and the next one faults again.
  if (status != Status::kOk) return page;
  return {state->managed.user_base() + mapped.first * kPageBytes,
          (mapped.last - mapped.first) * kPageBytes};
}

// Makes the host's touches of the pages fault.
void unmap(std::uintptr_t block_address, const PageMask& pages) {
  for (std::size_t first = 0, last = 0; first < kPagesPerBlock; first = last + 1) {
    last = first;
    while (last < kPagesPerBlock && pages.test(last)) ++last;
    if (last == first) continue;
    HostTouches::unmap({block_address + first * kPageBytes, (last - first) * kPageBytes});
  }
}

// Called after instance() is set, because the new thread may have to serve a fault at once.
void track_host_touches(SharedState& shared) {
  // Used without the lock, because its addresses never change.
  const Arena& managed = shared.lock()->managed;
  if (!shared.settings().cpu_touches || managed.size() == 0) return;
  auto touches = HostTouches::start(
      {managed.user_base(), managed.size()},
      [&managed](std::uintptr_t address) { return managed.device_view(address); },
      [&shared](std::uintptr_t address, bool write) {
        return touch_by_host(shared, address, write);
      });
  if (touches == nullptr) return;
  const auto state = shared.lock();
  state->host_touches = std::move(touches);
  state->residency.set_left_host([&managed](const Block& block, const PageMask& pages) {
    if (block.index * kBlockBytes < managed.size())
      unmap(managed.user_base() + block.index * kBlockBytes, pages);
  });
}

void end_streams_of(MachineState& state, int context, std::vector<std::shared_ptr<Graph>>* graphs) {
  for (const StreamHandle handle : state.timeline.streams_of(context)) {
    state.end_capture_of(*state.timeline.find_stream(kHost, handle), graphs);
    state.timeline.destroy_stream(handle);
  }
  state.timeline.destroy_events_of(context);
}

void end_primary_context(MachineState& state, int device,
                         std::vector<std::shared_ptr<Graph>>* graphs) {
  for (Stream* stream : state.timeline.per_thread_streams_of(device))
    state.end_capture_of(*stream, graphs);
  std::erase_if(state.peers,
                [&](const auto& pair) { return pair.first == device || pair.second == device; });
  const PoolHandle handle = state.pools.defaults[static_cast<std::size_t>(device)];
  state.pools.currents[static_cast<std::size_t>(device)] = handle;
  Pool& pool = *state.pools.find(handle);
  pool.release_threshold_bytes = 0;
  pool.used_high_bytes = pool.used_bytes;
  state.memory(device).close_context();
}

void end_allocation(MachineState& state, const Allocation& allocation) {
  auto* const address = reinterpret_cast<void*>(allocation.address);
  const AllocationRecord* record = state.allocations.find(allocation.address);
  switch (allocation.kind) {
    case MemoryKind::kManaged:
    case MemoryKind::kDevice:
      if (!allocation.imported && allocation.mapped_for == 0)
        state.remove_allocation(*record, MachineState::Addresses::kKeepBack);
      break;
    case MemoryKind::kPinned:
      state.host.release(round_up(allocation.size_bytes, kPageBytes));
      state.allocations.remove(allocation.address);
      ++state.counters.pinned_frees;
      munmap(address, round_up(allocation.size_bytes, kPageBytes));
      break;
    case MemoryKind::kRegistered:
      state.allocations.remove(allocation.address);
      break;
    case MemoryKind::kOrdinary:
      break;
  }
}

}  // namespace

Machine& Machine::instance() {
  static Machine* const machine = [] {
    auto* instance = new Machine;  // leaked: code that runs at exit may call it
    made.store(instance, std::memory_order_release);
    track_host_touches(*instance->shared_);
    pthread_atfork(&Machine::before_fork, &Machine::after_fork_in_parent,
                   &Machine::after_fork_in_child);
    return instance;
  }();
  return *machine;
}

Machine* Machine::existing() {
  return lost_in_fork() ? nullptr : made.load(std::memory_order_acquire);
}

bool Machine::lost_in_fork() {
  return lost.load(std::memory_order_relaxed);
}

Machine::Machine()
    : settings_(process_settings()), shared_(std::make_unique<SharedState>(settings_)) {
  write_report_at_exit();
}

// Takes all locks, because a lock that another thread holds during a fork would stay locked in the
// child.
void Machine::before_fork() {
  made.load(std::memory_order_acquire)->shared_->lock_for_fork();
  CallTable::instance().lock();
}

void Machine::after_fork_in_parent() {
  CallTable::instance().unlock();
  made.load(std::memory_order_acquire)->shared_->adopt();
}

void Machine::after_fork_in_child() {
  lost.store(true, std::memory_order_relaxed);
  CallTable::instance().unlock();
  const auto state = made.load(std::memory_order_acquire)->shared_->adopt();
  if (state->host_touches != nullptr) state->host_touches->abandon();
  state->managed.abandon();
  state->device_only.abandon();
}

void Machine::open_context(int device) {
  const auto state = shared_->lock();
  DeviceMemory& target = state->memory(device);
  const std::size_t bytes = DeviceMemory::context_bytes(target.capacity_bytes());
  if (!target.could_hold(bytes)) return;
  state->make_room(device, bytes);
  target.open_context();
}

void Machine::destroy_context(int context) {
  std::vector<std::shared_ptr<Graph>> graphs;  // of ended captures; destroyed without the lock
  const auto state = shared_->lock();
  end_streams_of(*state, context, &graphs);
  const auto ended = state->allocations.all_where(
      [&](const Allocation& allocation) { return allocation.context == context; });
  for (const Allocation& allocation : ended) end_allocation(*state, allocation);
  if (context < kMostDevices) end_primary_context(*state, context, &graphs);
}

std::string Machine::broken_invariant() {
  const auto state = shared_->lock();
  for (int device = 0; device < state->settings.devices; ++device) {
    const DeviceMemory& used = state->memory(device);
    if (used.unevictable_bytes() + used.managed_bytes() > used.capacity_bytes()) {
      return "device " + std::to_string(device) + " holds more than its capacity";
    }
  }
  if (state->residency.has_work())
    return "pages were moved, and no thread or stream was charged for it";
  return state->residency.broken_invariant();
}

uvmsim_counters Machine::counters() {
  uvmsim_counters counters = shared_->lock()->counters;
  counters.unimplemented_calls = CallTable::instance().unimplemented_calls();
  return counters;
}

void Machine::reset_counters() {
  shared_->lock()->counters = {};
  CallTable::instance().reset_counts();
}

}  // namespace uvmsim
