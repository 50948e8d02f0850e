#include "allocator/process/framework_bridge.hpp"

#include <atomic>
#include <new>
#include <optional>
#include <utility>

#include <uvmalloc/inspection.hpp>
#include <uvmalloc/registry.hpp>
#include "allocator/engine/engine.hpp"
#include "allocator/process/process_allocator.hpp"

namespace uvm {

namespace {

// Adds the pages of converted memory to an automatic budget, or subtracts them if not `grows`.
void change_budget(Engine& engine, std::size_t size_bytes, bool grows) {
  const std::size_t pages_bytes = round_up(size_bytes, kPageBytes);
  const HeapGuard heap(engine.state);
  if (heap->budget_source != BudgetSource::kMachine) return;
  heap->set_budget(grows ? heap->budget_bytes + pages_bytes : heap->budget_bytes - pages_bytes);
}

}  // namespace

bool FrameworkBridge::mark_exported(const void* address) {
  return engine().uses.mark_exported(address);
}

void FrameworkBridge::mark_live_exported() {
  engine().uses.mark_live_exported();
}

void FrameworkBridge::set_pinned(const void* address, bool pinned) {
  engine().uses.set_pinned(address, pinned);
}

void FrameworkBridge::note_left_host(const void* address) {
  engine().mover.note_left(address, Place::host());
}

bool FrameworkBridge::note_places(const void* address, PlaceSet places) {
  return engine().mover.note_places(address, places);
}

void FrameworkBridge::note_place_again(const void* address, Place place) {
  engine().mover.note_place_again(address, place);
}

void FrameworkBridge::set_places_source(std::function<void()> source) {
  engine().places_source = std::move(source);
}

void* FrameworkBridge::allocate_for_conversion(int device, std::size_t size_bytes) {
  change_budget(engine(), size_bytes, true);
  try {
    void* address = allocator_->allocate(Facade::kHost, device, size_bytes);
    const HeapGuard heap(engine().state);
    ++heap->statistics.figures().conversions.count;
    heap->statistics.figures().conversions.bytes += size_bytes;
    return address;
  } catch (...) {
    change_budget(engine(), size_bytes, false);
    throw;
  }
}

void FrameworkBridge::note_copy(CopyReason reason, std::size_t size_bytes) {
  const HeapGuard heap(engine().state);
  MoveStatistics::Copies& copies =
      heap->statistics.figures().moves.copies[static_cast<std::size_t>(reason)];
  ++copies.count;
  copies.bytes += size_bytes;
  if (size_bytes >= engine().machine.configuration.host_threshold_bytes) {
    copies.bytes_at_or_above_threshold += size_bytes;
  }
}

void FrameworkBridge::note_materialization(std::size_t copied_bytes, bool steal) {
  const HeapGuard heap(engine().state);
  if (steal) {
    ++heap->statistics.figures().materializations.steals;
  } else {
    ++heap->statistics.figures().materializations.copies;
    heap->statistics.figures().materializations.bytes += copied_bytes;
  }
}

void FrameworkBridge::set_memory_observer(MemoryObserver* observer) {
  const HeapGuard heap(engine().state);
  heap->statistics.set_observer(observer);
}

void FrameworkBridge::set_search_signs(std::function<SearchSign()> find) {
  engine().spill_limit.set_find_sign(std::move(find));
}

// ---- settings of this process

namespace {

thread_local HostMemory thread_host_memory = HostMemory::kManaged;
thread_local bool thread_aliases = false;
std::atomic<bool> plugin_installed{false};
std::atomic<bool> framework_present{false};
std::atomic<bool> framework_without_plugin{false};
std::atomic<bool> cpu_tensors_at_once{false};

// The mode that the process has set; if empty, the configured mode is used.
std::atomic<std::optional<MoveMode>> process_move_mode{std::nullopt};

}  // namespace

bool manages_cpu_tensors_at_once() {
  return cpu_tensors_at_once.load(std::memory_order_relaxed) ||
         process_configuration().configuration.cpu_tensors == CpuTensors::kManaged;
}
void set_manages_cpu_tensors_at_once() noexcept {
  cpu_tensors_at_once = true;
}

HostMemory set_host_memory(HostMemory memory) noexcept {
  return std::exchange(thread_host_memory, memory);
}
HostMemory host_memory() noexcept {
  return thread_host_memory;
}

MoveMode configured_move_mode() noexcept {
  try {
    return process_configuration().configuration.move;
  } catch (const std::bad_alloc&) {
    return Configuration{}.move;
  }
}
void set_move_mode(MoveMode mode) noexcept {
  process_move_mode.store(mode, std::memory_order_relaxed);
}
MoveMode move_mode() noexcept {
  if (thread_aliases) return MoveMode::kAlias;
  const std::optional<MoveMode> set = process_move_mode.load(std::memory_order_relaxed);
  return set ? *set : configured_move_mode();
}
bool set_thread_aliases(bool aliases) noexcept {
  return std::exchange(thread_aliases, aliases);
}

bool is_plugin_enabled() {
  if (!plugin_installed) return false;
  if (has_activation_failed()) return false;
  if (!is_driver_initialized()) {
    return is_runtime_present(process_configuration().configuration.runtime);
  }
  const CachingManagedAllocator* allocator = activate_process_allocator().allocator;
  return allocator != nullptr && !allocator->inspection().in_forked_child();
}
bool is_plugin_installed() noexcept {
  return plugin_installed;
}
bool has_framework() noexcept {
  return plugin_installed || (framework_present && !framework_without_plugin);
}
void note_framework() noexcept {
  framework_present = true;
}
bool is_framework_without_plugin() noexcept {
  return framework_without_plugin;
}
void note_framework_without_plugin() noexcept {
  framework_without_plugin = true;
}
void set_plugin_installed(bool installed) noexcept {
  plugin_installed = installed;
  describe_process();
}

}  // namespace uvm
