// Creation and forks of the machine, and its memory.
#include "sim/engine/machine.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <string>

#include "sim/engine/call_table.hpp"
#include "sim/engine/report.hpp"
#include "sim/engine/thread_context.hpp"
#include "sim/engine/units.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {
namespace {

// Address space only: pages exist once they are touched.
constexpr std::size_t kManagedArenaBytes = std::size_t{256} << 30;
// A program may reserve more addresses than there is memory: PyTorch reserves 9/8 of a device for
// each stream.
constexpr std::size_t kDeviceArenaBytes = std::size_t{4} << 40;

// The most bytes that keep_back() holds: an eighth of an arena.
constexpr std::size_t kMostKeptBackBytes = std::size_t{32} << 30;

constexpr std::size_t kRowAlignmentBytes = 512;

std::atomic<Machine*> made{nullptr};
std::atomic<bool> lost{false};

// Returns MemFree of /proc/meminfo, in bytes.
std::size_t free_host_bytes() {
  std::ifstream file("/proc/meminfo");
  std::size_t kib = 0;
  for (std::string name; file >> name;) {
    if (name == "MemFree:" && file >> kib) break;
  }
  return kib << 10;
}

std::unique_ptr<OrdinaryMemory> make_ordinary_memory(Profile profile) {
  const bool reached = profile == Profile::kHmm || profile == Profile::kCoherent;
  return reached ? std::make_unique<OrdinaryMemory>() : nullptr;
}

std::vector<DeviceMemory> make_memories(const Settings& settings) {
  std::vector<DeviceMemory> memories;
  for (int device = 0; device < settings.devices; ++device) {
    memories.emplace_back(device, settings.machine.capacity_bytes);
  }
  return memories;
}

}  // namespace

Machine& Machine::instance() {
  static Machine* const machine = [] {
    auto* instance = new Machine(process_settings());  // leaked: code that runs at exit may call it
    made.store(instance, std::memory_order_release);
    instance->track_host_touches();
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

Machine::Machine(const Settings& settings)
    : settings_(settings),
      costs_(settings.machine.costs, settings.machine.rules.faults.batch_faults,
             settings.machine.rules.thrashing.lapse_ns),
      memories_(make_memories(settings)),
      host_(host_capacity_bytes(settings.machine)),
      managed_("uvmsim-managed", kManagedArenaBytes, Arena::HostAccess::kReadWrite),
      device_only_("uvmsim-device", kDeviceArenaBytes, Arena::HostAccess::kNone),
      ordinary_(make_ordinary_memory(settings.machine.memory)),
      residency_(
          managed_.size() / kBlockBytes, memories_, host_, counters_,
          [this](int device, int peer) {
            return peers_.contains({device, peer});
          },
          [](std::size_t block) { return OrdinaryMemory::mapped_pages(block * kBlockBytes); },
          settings.machine.rules),
      timeline_(settings.devices, static_cast<std::uint64_t>(settings.machine.costs.query_ns)),
      pools_(settings.devices) {
  write_report_at_exit();
}

// Called after instance() is set, because the new thread may have to serve a fault at once.
void Machine::track_host_touches() {
  if (!settings_.cpu_touches || managed_.size() == 0) return;
  host_touches_ = HostTouches::start(
      {managed_.user_base(), managed_.size()},
      [this](std::uintptr_t address) { return managed_.device_view(address); },
      [this](std::uintptr_t address, bool write) {
        const MemoryRange range = touch_by_host(address, write);
        return HostTouches::Range{reinterpret_cast<std::uintptr_t>(range.address),
                                  range.size_bytes};
      });
  if (host_touches_ == nullptr) return;
  residency_.set_left_host([this](const Block& block, const PageMask& pages) {
    if (block.index * kBlockBytes >= managed_.size()) return;
    const std::uintptr_t base = managed_.user_base() + block.index * kBlockBytes;
    for (std::size_t first = 0; first < kPagesPerBlock;) {
      if (!pages.test(first)) {
        ++first;
        continue;
      }
      std::size_t last = first;
      while (last < kPagesPerBlock && pages.test(last)) ++last;
      HostTouches::unmap({base + first * kPageBytes, (last - first) * kPageBytes});
      first = last;
    }
  });
}

MemoryRange Machine::touch_by_host(std::uintptr_t address, bool write) {
  const MemoryRange page{reinterpret_cast<void*>(address), kPageBytes};
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = allocations_.find(address);
  if (record == nullptr || record->placement == nullptr) return page;
  const std::size_t base = first_page_of(*record);
  const std::size_t number = managed_.offset_of(address) / kPageBytes;
  const auto [begin, end] = record->placement->policy.span_of(number - base);
  PageRange mapped{number, number + 1};
  const Status status = residency_.touch_by_host(number, {base + begin, base + end},
                                                 record->placement->policy.at(number - base),
                                                 {!write, write, timeline_.now_ns()}, &mapped);
  timeline_.run_on_host(record->allocation.device, costs_.phases(residency_.take_work()));
  // If the host has no memory left, the touch proceeds and the next one faults again.
  if (status != Status::kOk) return page;
  return {reinterpret_cast<void*>(managed_.user_base() + mapped.first * kPageBytes),
          (mapped.last - mapped.first) * kPageBytes};
}

// Takes all locks: a lock that another thread holds during a fork would stay locked in the child.
void Machine::before_fork() {
  made.load(std::memory_order_acquire)->mutex_.lock();
  CallTable::instance().lock();
}

void Machine::after_fork_in_parent() {
  CallTable::instance().unlock();
  made.load(std::memory_order_acquire)->mutex_.unlock();
}

void Machine::after_fork_in_child() {
  Machine* machine = made.load(std::memory_order_acquire);
  lost.store(true, std::memory_order_relaxed);
  CallTable::instance().unlock();
  if (machine->host_touches_ != nullptr) machine->host_touches_->abandon();
  machine->managed_.abandon();
  machine->device_only_.abandon();
  machine->mutex_.unlock();
}

// ---- memory

MemoryUse Machine::memory_use(int device) {
  // As in the modelled driver, memory that Linux could reclaim does not count as free.
  const std::size_t host_free_bytes =
      shares_host_memory() ? free_host_bytes() : std::numeric_limits<std::size_t>::max();
  const std::lock_guard lock(mutex_);
  forget_unmapped();
  const DeviceMemory& used = memory(device);
  return {used.capacity_bytes(), used.unevictable_bytes(),
          shares_host_memory() ? host_.used_bytes() - charged_bytes() : used.managed_bytes(),
          used.peak_bytes(), host_free_bytes};
}

std::size_t Machine::charged_bytes() const {
  std::size_t bytes = 0;
  for (const DeviceMemory& each : memories_) bytes += each.charged_bytes();
  return bytes;
}

HostUse Machine::host_use() {
  const std::lock_guard lock(mutex_);
  return {host_.capacity_bytes(), host_.used_bytes(), host_.peak_bytes()};
}

bool Machine::make_room(int device, std::size_t bytes) {
  const bool is_made = residency_.make_room(device, bytes);
  timeline_.run_on_host(device, costs_.phases(residency_.take_work()));
  return is_made;
}

// Charges unevictable memory to the device, and to the host if the device shares the host's memory.
bool Machine::charge_device(int device, std::size_t bytes) {
  if (!memory(device).could_hold(bytes)) return false;
  if (shares_host_memory() && !host_.take(bytes)) return false;
  if (!make_room(device, bytes)) return false;
  memory(device).charge(bytes);
  return true;
}

void Machine::release_device(int device, std::size_t bytes) {
  memory(device).release(bytes);
  if (shares_host_memory()) host_.release(bytes);
}

void Machine::reset_peak_use(int device) {
  const std::lock_guard lock(mutex_);
  memory(device).reset_peak();
}

Status Machine::set_capacity(int device, std::size_t bytes) {
  if (!has_device(device) || bytes < kBlockBytes) return Status::kInvalidValue;
  const std::lock_guard lock(mutex_);
  DeviceMemory& target = memory(device);
  const std::size_t unevictable = target.unevictable_at(bytes);
  if (bytes < unevictable) return Status::kOutOfMemory;
  const std::size_t used = unevictable + target.managed_bytes();
  if (used > bytes) {
    // Evict the surplus while the old capacity still applies.
    make_room(device, target.free_bytes() + used - bytes);
  }
  target.set_capacity(bytes);
  if (shares_host_memory()) host_.set_capacity(bytes);
  return Status::kOk;
}

void Machine::open_context(int device) {
  const std::lock_guard lock(mutex_);
  DeviceMemory& target = memory(device);
  const std::size_t bytes = DeviceMemory::context_bytes(target.capacity_bytes());
  if (!target.could_hold(bytes)) return;
  make_room(device, bytes);
  target.open_context();
}

Allocation Machine::describe(MemoryKind kind, const void* address, std::size_t bytes, int device,
                             unsigned flags) {
  return Allocation{.kind = kind,
                    .address = reinterpret_cast<std::uintptr_t>(address),
                    .size_bytes = bytes,
                    .device = device,
                    .flags = flags,
                    .id = next_allocation_id_++,
                    .context = memory_context_for(device)};
}

Status Machine::allocate_managed(int device, std::size_t bytes, unsigned flags, void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  WorkTrace::find_library();
  const std::lock_guard lock(mutex_);
  if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
  const std::uintptr_t address = managed_.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  *out = reinterpret_cast<void*>(address);
  allocations_.add(
      {.allocation = describe(MemoryKind::kManaged, *out, bytes, device, flags),
       .placement = std::make_unique<Placement>(round_up(bytes, kPageBytes) / kPageBytes)});
  ++counters_.managed_allocations;
  return Status::kOk;
}

Status Machine::allocate_device(int device, std::size_t bytes, void** out) {
  const std::lock_guard lock(mutex_);
  if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
  return take_device_memory(device, bytes, nullptr, out);
}

Status Machine::allocate_rows(int device, std::size_t width_bytes, std::size_t rows,
                              std::size_t* out_pitch_bytes, void** out) {
  if (width_bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::size_t pitch_bytes = round_up(width_bytes, kRowAlignmentBytes);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(pitch_bytes, rows, &bytes)) return Status::kOutOfMemory;
  const Status status = allocate_device(device, bytes, out);
  if (status == Status::kOk) *out_pitch_bytes = pitch_bytes;
  return status;
}

Status Machine::take_device_memory(int device, std::size_t bytes, PoolHandle pool, void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::size_t charge = DeviceMemory::charge_of(bytes);
  if (!memory(device).could_hold(charge)) return Status::kOutOfMemory;
  const std::uintptr_t address = device_only_.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  if (!charge_device(device, charge)) {
    device_only_.free(address, bytes);
    return Status::kOutOfMemory;
  }
  *out = reinterpret_cast<void*>(address);
  Allocation allocation = describe(MemoryKind::kDevice, *out, bytes, device, 0);
  allocation.charge_bytes = charge;
  allocation.pool = pool;
  if (pool != nullptr) allocation.context = device;  // the primary context, like the pool
  allocations_.add({.allocation = allocation, .placement = nullptr});
  ++counters_.device_allocations;
  return Status::kOk;
}

Status Machine::allocate_pinned(int device, std::size_t bytes, unsigned flags, void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::lock_guard lock(mutex_);
  if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
  void* address = mmap(nullptr, round_up(bytes, kPageBytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return Status::kOutOfMemory;
  if (!host_.take(round_up(bytes, kPageBytes))) {
    munmap(address, round_up(bytes, kPageBytes));
    return Status::kOutOfMemory;
  }
  *out = address;
  allocations_.add({.allocation = describe(MemoryKind::kPinned, address, bytes, device, flags),
                    .placement = nullptr});
  ++counters_.pinned_allocations;
  return Status::kOk;
}

Status Machine::free_memory(void* address, Wait wait) {
  const std::lock_guard lock(mutex_);
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = allocations_.find(user);
  if (record == nullptr || record->allocation.address != user || record->allocation.is_host()) {
    return Status::kInvalidValue;
  }
  const Allocation freed = record->allocation;
  if (freed.imported || freed.mapped_for != 0) return Status::kInvalidValue;
  if (wait == Wait::kYes) {
    if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
    timeline_.wait_until(timeline_.device_completion_ns(freed.device));
  }
  remove_allocation(*record, Addresses::kReuse);
  return Status::kOk;
}

// For managed memory, and device memory that this process allocated.
void Machine::remove_allocation(const AllocationRecord& record, Addresses addresses) {
  const Allocation freed = record.allocation;
  if (freed.kind == MemoryKind::kManaged) {
    residency_.forget(pages_of(record, {reinterpret_cast<void*>(freed.address), freed.size_bytes}));
    managed_.clear(freed.address, freed.size_bytes);
    ++counters_.managed_frees;
  } else {
    release_device(freed.device, freed.charge_bytes);
    if (Pool* pool = pools_.find(freed.pool)) pool->used_bytes -= freed.charge_bytes;
    device_only_.clear(freed.address, freed.size_bytes);
    ++counters_.device_frees;
  }
  allocations_.remove(freed.address);
  if (addresses == Addresses::kKeepBack) {
    keep_back(freed);
  } else {
    arena_of(freed).reuse(freed.address, freed.size_bytes);
  }
}

void Machine::keep_back(const Allocation& ended) {
  kept_back_.push_back(ended);
  kept_back_bytes_ += ended.size_bytes;
  while (kept_back_bytes_ > kMostKeptBackBytes) {
    const Allocation& oldest = kept_back_.front();
    arena_of(oldest).reuse(oldest.address, oldest.size_bytes);
    kept_back_bytes_ -= oldest.size_bytes;
    kept_back_.pop_front();
  }
}

void Machine::end_capture_of(Stream& stream, std::vector<std::shared_ptr<Graph>>* graphs) {
  std::shared_ptr<Graph> graph;
  captures_.forget(stream, &graph);
  if (graph == nullptr) return;
  graphs_.erase(graph.get());
  graphs->push_back(std::move(graph));
}

void Machine::end_streams_of(int context, std::vector<std::shared_ptr<Graph>>* graphs) {
  for (const StreamHandle handle : timeline_.streams_of(context)) {
    end_capture_of(*timeline_.find_stream(kHost, handle), graphs);
    timeline_.destroy_stream(handle);
  }
  timeline_.destroy_events_of(context);
}

void Machine::end_primary_context(int device, std::vector<std::shared_ptr<Graph>>* graphs) {
  for (Stream* stream : timeline_.per_thread_streams_of(device)) end_capture_of(*stream, graphs);
  std::erase_if(peers_,
                [&](const auto& pair) { return pair.first == device || pair.second == device; });
  const PoolHandle pool = pools_.default_of(device);
  pools_.set_current(device, pool);
  pools_.find(pool)->release_threshold_bytes = 0;
  pools_.find(pool)->used_high_bytes = pools_.find(pool)->used_bytes;
  memory(device).close_context();
}

void Machine::end_allocation(const Allocation& allocation) {
  auto* const address = reinterpret_cast<void*>(allocation.address);
  const AllocationRecord* record = allocations_.find(allocation.address);
  switch (allocation.kind) {
    case MemoryKind::kManaged:
      remove_allocation(*record, Addresses::kKeepBack);
      break;
    case MemoryKind::kDevice:
      if (!allocation.imported && allocation.mapped_for == 0)
        remove_allocation(*record, Addresses::kKeepBack);
      break;
    case MemoryKind::kPinned:
      host_.release(round_up(allocation.size_bytes, kPageBytes));
      allocations_.remove(allocation.address);
      ++counters_.pinned_frees;
      munmap(address, round_up(allocation.size_bytes, kPageBytes));
      break;
    case MemoryKind::kRegistered:
      allocations_.remove(allocation.address);
      break;
    case MemoryKind::kOrdinary:
      break;
  }
}

void Machine::destroy_context(int context) {
  std::vector<std::shared_ptr<Graph>> graphs;  // of ended captures; destroyed without the lock
  const std::lock_guard lock(mutex_);
  end_streams_of(context, &graphs);
  const auto ended = allocations_.all_where(
      [&](const Allocation& allocation) { return allocation.context == context; });
  for (const Allocation& allocation : ended) end_allocation(allocation);
  if (context < kMostDevices) end_primary_context(context, &graphs);
}

Status Machine::free_pinned(void* address) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
    const auto user = reinterpret_cast<std::uintptr_t>(address);
    const AllocationRecord* record = allocations_.find(user);
    if (record == nullptr || record->allocation.address != user ||
        record->allocation.kind != MemoryKind::kPinned) {
      return Status::kInvalidValue;
    }
    timeline_.wait_until(timeline_.device_completion_ns(record->allocation.device));
    bytes = record->allocation.size_bytes;
    host_.release(round_up(bytes, kPageBytes));
    allocations_.remove(user);
    ++counters_.pinned_frees;
  }
  munmap(address, round_up(bytes, kPageBytes));
  return Status::kOk;
}

Status Machine::register_host(int device, void* address, std::size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0) return Status::kInvalidValue;
  const std::lock_guard lock(mutex_);
  if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
  if (allocations_.overlaps(reinterpret_cast<std::uintptr_t>(address), bytes)) {
    return Status::kHostMemoryAlreadyRegistered;
  }
  allocations_.add({.allocation = describe(MemoryKind::kRegistered, address, bytes, device, flags),
                    .placement = nullptr});
  return Status::kOk;
}

Status Machine::unregister_host(void* address) {
  const std::lock_guard lock(mutex_);
  if (const Status status = captures_.admit_unsafe_call(); status != Status::kOk) return status;
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = allocations_.find(user);
  if (record == nullptr || record->allocation.address != user ||
      record->allocation.kind != MemoryKind::kRegistered) {
    return Status::kHostMemoryNotRegistered;
  }
  allocations_.remove(user);
  return Status::kOk;
}

std::optional<Allocation> Machine::find(const void* address) {
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = allocations_.find(reinterpret_cast<std::uintptr_t>(address));
  if (record == nullptr) return std::nullopt;
  return record->allocation;
}

std::byte* Machine::view_of(const AllocationRecord* record, std::uintptr_t address) {
  if (record != nullptr && record->allocation.kind == MemoryKind::kManaged) {
    return managed_.device_view(address);
  }
  if (record != nullptr && record->allocation.kind == MemoryKind::kDevice) {
    return device_only_.device_view(address);
  }
  return reinterpret_cast<std::byte*>(address);
}

void* Machine::device_view(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = record_of({address, 1});
  return record == nullptr ? nullptr : view_of(record, user);
}

std::string Machine::broken_invariant() {
  const std::lock_guard lock(mutex_);
  for (int device = 0; device < settings_.devices; ++device) {
    const DeviceMemory& used = memory(device);
    if (used.unevictable_bytes() + used.managed_bytes() > used.capacity_bytes()) {
      return "device " + std::to_string(device) + " holds more than its capacity";
    }
  }
  if (residency_.has_work()) return "pages were moved, and no thread or stream was charged for it";
  return residency_.broken_invariant();
}

uvmsim_counters Machine::counters() {
  uvmsim_counters counters;
  {
    const std::lock_guard lock(mutex_);
    counters = counters_;
  }
  counters.unimplemented_calls = CallTable::instance().unimplemented_calls();
  return counters;
}

void Machine::reset_counters() {
  {
    const std::lock_guard lock(mutex_);
    counters_ = {};
  }
  CallTable::instance().reset_counts();
}

}  // namespace uvmsim
