#include "sim/engine/machine_state.hpp"

#include "sim/engine/report.hpp"
#include "sim/engine/thread_context.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

// Only address space: pages exist after they are touched.
constexpr std::size_t kManagedArenaBytes = std::size_t{256} << 30;
// A program may reserve more addresses than a device has memory. For example, PyTorch reserves 9/8
// of a device for each stream.
constexpr std::size_t kDeviceArenaBytes = std::size_t{4} << 40;

// The most bytes that keep_back() holds: an eighth of an arena.
constexpr std::size_t kMostKeptBackBytes = std::size_t{32} << 30;

std::unique_ptr<OrdinaryMemory> make_ordinary_memory(const MachineProfile& machine) {
  return machine.reaches_ordinary_memory() ? std::make_unique<OrdinaryMemory>() : nullptr;
}

std::vector<DeviceMemory> make_memories(const Settings& settings) {
  std::vector<DeviceMemory> memories;
  for (int device = 0; device < settings.devices; ++device) {
    memories.emplace_back(device, settings.machine.capacity_bytes);
  }
  return memories;
}

}  // namespace

MachineState::MachineState(const Settings& given)
    : settings(given),
      costs(given.machine.costs, given.machine.rules.faults.batch_faults,
            given.machine.rules.thrashing.lapse_ns),
      counters(counters_of_process()),
      memories(make_memories(given)),
      host(host_capacity_bytes(given.machine)),
      managed("uvmsim-managed", kManagedArenaBytes, Arena::HostAccess::kReadWrite),
      device_only("uvmsim-device", kDeviceArenaBytes, Arena::HostAccess::kNone),
      ordinary(make_ordinary_memory(given.machine)),
      residency(
          managed.size() / kBlockBytes, memories, host, counters,
          [this](int device, int peer) {
            return peers.contains({device, peer});
          },
          [](std::size_t block) { return OrdinaryMemory::mapped_pages(block * kBlockBytes); },
          given.machine.rules),
      timeline(given.devices, static_cast<std::uint64_t>(given.machine.costs.query_ns)) {}

// ---- which memory an address is in

AllocationRecord* MachineState::record_of(MemoryRange range) {
  AllocationRecord* record = allocations.find(range.start());
  if (record == nullptr) return ordinary_record(range);
  const std::size_t offset = range.start() - record->allocation.address;
  return range.size_bytes <= record->allocation.size_bytes - offset ? record : nullptr;
}

AllocationRecord* MachineState::ordinary_record(MemoryRange range) {
  const std::uintptr_t address = range.start();
  if (ordinary == nullptr || range.size_bytes == 0) return nullptr;
  if (!OrdinaryMemory::is_mapped(address, range.size_bytes)) {
    forget_unmapped();
    return nullptr;
  }
  if (allocations.overlaps(address, range.size_bytes) || managed.meets(address, range.size_bytes) ||
      device_only.meets(address, range.size_bytes)) {
    return nullptr;
  }
  return &ordinary->record();
}

AllocationRecord* MachineState::placed_record(MemoryRange range) {
  AllocationRecord* record = range.size_bytes == 0 ? nullptr : record_of(range);
  return record != nullptr && record->placement != nullptr ? record : nullptr;
}

void MachineState::forget_unmapped() {
  if (ordinary == nullptr) return;
  residency.forget_unmapped();
  ordinary->forget_unmapped();
}

PageRange MachineState::pages_of(const AllocationRecord& record, MemoryRange range) const {
  const std::size_t base = first_page_of(record);
  const std::size_t offset = range.start() - record.allocation.address;
  return {base + offset / kPageBytes,
          base + round_up(offset + range.size_bytes, kPageBytes) / kPageBytes};
}

std::size_t MachineState::first_page_of(const AllocationRecord& record) const {
  if (record.allocation.kind == MemoryKind::kOrdinary) return managed.size() / kPageBytes;
  return managed.offset_of(record.allocation.address) / kPageBytes;
}

std::byte* MachineState::view_of(const AllocationRecord* record, std::uintptr_t address) {
  if (record != nullptr && record->allocation.kind == MemoryKind::kManaged) {
    return managed.device_view(address);
  }
  if (record != nullptr && record->allocation.kind == MemoryKind::kDevice) {
    return device_only.device_view(address);
  }
  return reinterpret_cast<std::byte*>(address);
}

// ---- allocations and what they take from devices and host

bool MachineState::make_room(int device, std::size_t bytes) {
  const bool is_made = residency.make_room(device, bytes);
  timeline.run_on_host(device, costs.phases(residency.take_work()));
  return is_made;
}

bool MachineState::charge_device(int device, std::size_t bytes) {
  if (!memory(device).could_hold(bytes)) return false;
  if (settings.machine.shares_host_memory() && !host.take(bytes)) return false;
  if (!make_room(device, bytes)) return false;
  memory(device).charge(bytes);
  return true;
}

void MachineState::release_device(int device, std::size_t bytes) {
  memory(device).release(bytes);
  if (settings.machine.shares_host_memory()) host.release(bytes);
}

Allocation MachineState::describe(MemoryKind kind, const void* address, std::size_t bytes,
                                  int device, unsigned flags) {
  return Allocation{.kind = kind,
                    .address = reinterpret_cast<std::uintptr_t>(address),
                    .size_bytes = bytes,
                    .device = device,
                    .flags = flags,
                    .id = next_allocation_id++,
                    .context = memory_context_for(device)};
}

Status MachineState::take_device_memory(int device, std::size_t bytes, PoolHandle pool,
                                        void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::size_t charge = DeviceMemory::charge_of(bytes);
  if (!memory(device).could_hold(charge)) return Status::kOutOfMemory;
  const std::uintptr_t address = device_only.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  if (!charge_device(device, charge)) {
    device_only.free(address, bytes);
    return Status::kOutOfMemory;
  }
  *out = reinterpret_cast<void*>(address);
  Allocation allocation = describe(MemoryKind::kDevice, *out, bytes, device, 0);
  allocation.charge_bytes = charge;
  allocation.pool = pool;
  if (pool != nullptr) allocation.context = device;  // the primary context, like the pool
  allocations.add({.allocation = allocation, .placement = nullptr});
  ++counters.device_allocations;
  return Status::kOk;
}

void MachineState::remove_allocation(const AllocationRecord& record, Addresses addresses) {
  const Allocation freed = record.allocation;
  if (freed.kind == MemoryKind::kManaged) {
    residency.forget(pages_of(record, {reinterpret_cast<void*>(freed.address), freed.size_bytes}));
    managed.clear(freed.address, freed.size_bytes);
    ++counters.managed_frees;
  } else {
    release_device(freed.device, freed.charge_bytes);
    if (Pool* pool = pools.find(freed.pool)) pool->used_bytes -= freed.charge_bytes;
    device_only.clear(freed.address, freed.size_bytes);
    ++counters.device_frees;
  }
  allocations.remove(freed.address);
  if (addresses == Addresses::kKeepBack) {
    keep_back(freed);
  } else {
    arena_of(freed).reuse(freed.address, freed.size_bytes);
  }
}

void MachineState::keep_back(const Allocation& ended) {
  kept_back.push_back(ended);
  kept_back_bytes += ended.size_bytes;
  while (kept_back_bytes > kMostKeptBackBytes) {
    const Allocation& oldest = kept_back.front();
    arena_of(oldest).reuse(oldest.address, oldest.size_bytes);
    kept_back_bytes -= oldest.size_bytes;
    kept_back.pop_front();
  }
}

// ---- work

void MachineState::end_capture_of(Stream& stream, std::vector<std::shared_ptr<Graph>>* graphs_out) {
  std::shared_ptr<Graph> graph;
  captures.forget(stream, &graph);
  if (graph == nullptr) return;
  graphs.erase(graph.get());
  graphs_out->push_back(std::move(graph));
}

}  // namespace uvmsim
