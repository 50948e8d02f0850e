// The allocator's functions by topic. Each function forwards to the part that implements it.
#include <optional>
#include <utility>

#include <uvmalloc/inspection.hpp>
#include <uvmalloc/kernel_uses.hpp>
#include <uvmalloc/limits.hpp>
#include <uvmalloc/private_pools.hpp>
#include <uvmalloc/streams.hpp>
#include <uvmalloc/tracing.hpp>
#include "allocator/engine/engine.hpp"

namespace uvm {

// ---- streams

bool Streams::record_use_of_all(const void* address, int device) {
  return engine_->uses.record_use_of_all(address, device);
}

std::vector<DeviceStream> Streams::uses_of(const void* address) const {
  return engine_->uses.uses_of(address);
}

void Streams::wait_for_uses(const void* address) {
  engine_->uses.wait_for_uses(address);
}

void Streams::forget(int device, StreamHandle stream) {
  engine_->stream_pools.retire_stream(device, stream);
}

void Streams::begin_capture(const DeviceStream& stream) {
  engine_->machine.check_device(stream.device);
  if (!engine_->machine.in_forked_child()) engine_->machine.stream_work.begin_capture(stream);
}

void Streams::end_capture(const DeviceStream& stream) noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.stream_work.end_capture(stream);
}

std::vector<DeviceStream> Streams::of(int device) const {
  return engine_->stream_pools.streams_of(device);
}

void Streams::finish_prefetches() noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.sender.finish_prefetches();
}

std::vector<void*> Streams::forget_device(int device) {
  return engine_->device_reset.forget(device);
}

bool Streams::wait_for_device(int device) {
  return engine_->machine.stream_work.wait_for_device(device);
}

// ---- private pools

std::uint64_t PrivatePools::begin(int device, std::uint64_t id, StreamFilter routed,
                                  bool capturing) {
  return engine_->private_memory.begin(device, id, std::move(routed), capturing);
}

bool PrivatePools::end(int device, std::uint64_t id, std::uint64_t scope) {
  return engine_->private_memory.end(device, id, scope);
}

bool PrivatePools::release(int device, std::uint64_t id) {
  return engine_->private_memory.release(device, id);
}

void PrivatePools::retain(int device, std::uint64_t id) {
  engine_->private_memory.retain(device, id);
}

std::size_t PrivatePools::users(int device, std::uint64_t id) const {
  return engine_->private_memory.users(device, id);
}

bool PrivatePools::give_whole_pages(int device, std::uint64_t id) {
  return engine_->private_memory.give_whole_pages(device, id);
}

std::vector<PrivateBlock> PrivatePools::blocks(int device, std::uint64_t id) const {
  return engine_->private_memory.blocks(device, id);
}

void PrivatePools::restore(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks) {
  engine_->private_memory.restore(device, id, blocks);
}

void PrivatePools::release_cached(int device, std::uint64_t id) {
  engine_->reclaimer.release_cached_of(device, id);
}

// ---- uses of kernels

bool KernelUses::wanted() const noexcept {
  return engine_->live.wants_uses();
}

void KernelUses::set_listener(std::function<void(bool wanted)> listener) {
  engine_->live.set_listener(std::move(listener));
}

const void* KernelUses::note(StreamHandle stream, std::span<const live::UseRange> uses,
                             live::Launch launch) {
  if (!wanted()) return nullptr;
  std::optional<int> device;
  for (const live::UseRange& use : uses) {
    const auto* address = reinterpret_cast<const void*>(use.address);
    const auto block = engine_->introspection.find(address);
    if (!block || !block->live) return address;
    if (!device) device = block->location.is_device() ? block->location.index : block->device;
  }
  if (device) note(*device, stream, uses, launch);
  return nullptr;
}

void KernelUses::note(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                      live::Launch launch) noexcept {
  engine_->note_uses(device, stream, uses, launch);
}

bool KernelUses::note(const void* address, std::size_t size_bytes, StreamHandle stream,
                      std::uint8_t access) {
  const live::UseRange use{address_of(address), size_bytes, access};
  return note(stream, {&use, 1}, live::Launch::kKernel) == nullptr;
}

void KernelUses::step_boundary() noexcept {
  engine_->live.step_boundary();
}

// ---- limits

void Limits::set_device_limit(int device, std::size_t most_bytes) {
  engine_->machine.check_device(device);
  const HeapGuard heap(engine_->state);
  heap->device_limits[static_cast<std::size_t>(device)] = most_bytes;
}

std::size_t Limits::budget_bytes() const {
  return engine_->introspection.budget_bytes();
}

std::size_t Limits::first_budget_bytes() const {
  return engine_->machine.budget.hard_bytes;
}

void Limits::set_budget(std::size_t most_bytes) {
  require_budget("set_budget: the budget", most_bytes);
  const HeapGuard heap(engine_->state);
  heap->budget_source = BudgetSource::kProgram;
  heap->set_budget(most_bytes);
  heap->lowered_below_bytes = heap->exceeding_bytes();
}

std::size_t Limits::free_bytes(int device, const MemoryFigures& driver) const {
  if (engine_->places_source) engine_->places_source();
  return engine_->introspection.free_bytes(device, driver);
}

void Limits::add_pressure_callback(PressureCallback callback) {
  engine_->pressure_callbacks.add(std::move(callback));
}

void Limits::decay(std::chrono::steady_clock::time_point now) {
  engine_->decay.decay(now);
}

// ---- traces

std::string Tracing::start(const std::string& file) {
  return engine_->start_trace(file);
}

void Tracing::stop() noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.trace.stop();
}

void Tracing::mark(std::string_view text) noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.trace.mark(text);
}

void Tracing::call_site(const void* address, std::string_view site) noexcept {
  if (!wants_call_sites_ || site.empty() || engine_->machine.in_forked_child()) return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.allocated_at(trace.now(), address, site);
}

void Tracing::caller(const void* address, const void* caller) noexcept {
  if (!wants_call_sites_ || engine_->machine.in_forked_child()) return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.allocated_by(trace.now(), address, caller);
}

void Tracing::kernel(int device, StreamHandle stream, std::uint64_t amount, int type,
                     std::span<const TracedRange> ranges) noexcept {
  if (engine_->machine.in_forked_child() || device < 0 ||
      static_cast<std::size_t>(device) >= engine_->machine.devices.size())
    return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.kernel_started(trace.now(), device, stream, amount, static_cast<std::uint8_t>(type),
                       ranges);
}

void Tracing::order(int device, StreamHandle stream, const void* signal, int order) noexcept {
  if (engine_->machine.in_forked_child() || device < 0 ||
      static_cast<std::size_t>(device) >= engine_->machine.devices.size())
    return;
  TraceRecorder& trace = engine_->machine.trace;
  if (order < 0) {
    trace.signalled(trace.now(), device, stream, signal);
  } else if (order <= kLastTraceWait) {
    trace.waited(trace.now(), device, stream, signal, static_cast<TraceWait>(order));
  }
}

// ---- inspection

std::map<Place, std::size_t> Inspection::exact_residency(const void* address,
                                                         std::size_t size_bytes) const {
  return engine_->introspection.exact_residency(address, size_bytes);
}

DeviceResidency Inspection::device_residency(int device) const {
  return engine_->introspection.device_residency(device);
}

std::map<Place, std::size_t> Inspection::residency(const void* address,
                                                   std::size_t size_bytes) const {
  return engine_->introspection.residency(address, size_bytes);
}

bool Inspection::has_taken(const void* address) const {
  return engine_->introspection.has_taken(address);
}

Figures Inspection::figures() const {
  return engine_->introspection.figures();
}

live::LiveFigures Inspection::live_figures() const {
  return engine_->live.figures();
}

std::vector<sharing::SharingFigures> Inspection::sharing_figures() const {
  return engine_->device_sharing.figures();
}

std::vector<SegmentDescription> Inspection::segments() const {
  return engine_->introspection.segments();
}

const HintCounters& Inspection::hints() const {
  return engine_->machine.figure_store.hints();
}

const std::vector<DeviceDescription>& Inspection::devices() const {
  return engine_->machine.devices;
}

const DeviceRuntime& Inspection::runtime() const {
  return engine_->machine.runtime;
}

std::map<std::string, std::uint64_t> Inspection::runtime_calls() const {
  return engine_->machine.runtime.calls();
}

const Configuration& Inspection::configuration() const {
  return engine_->machine.configuration;
}

HostBacking Inspection::host_backing() const {
  return engine_->machine.span_memory.host_backing();
}

bool Inspection::in_forked_child() const {
  return engine_->machine.in_forked_child();
}

void Inspection::check_invariants() const {
  engine_->introspection.check_invariants();
}

}  // namespace uvm
