// The public interface: each function forwards to the part that owns it. allocate() and free() are
// in engine/fast_path.cpp.
#include <uvmalloc/allocator.hpp>

#include <bit>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "allocator/engine/engine.hpp"
#include "allocator/engine/forks.hpp"
#include "runtime/log.hpp"

namespace uvm {

CachingManagedAllocator::CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                                                 const Configuration& configuration,
                                                 const std::string& figures_file)
    : engine_(std::make_unique<Engine>(std::move(runtime), configuration, figures_file)),
      wants_call_sites_(configuration.call_sites) {
  Forks::add(&engine_->fork_guard);
}

CachingManagedAllocator::~CachingManagedAllocator() {
  Forks::remove(&engine_->fork_guard);
}

void* CachingManagedAllocator::allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                                                std::size_t alignment_bytes, StreamHandle stream) {
  if (!std::has_single_bit(alignment_bytes) || alignment_bytes > kPageBytes) {
    throw std::invalid_argument(
        fmt::format("an alignment of {} bytes is not possible; accepted: powers of two up to 2 MiB",
                    alignment_bytes));
  }
  if (alignment_bytes <= kGranule) return allocate(facade, device, size_bytes, stream);
  void* address = engine_->allocate_slow(facade, device, size_bytes, stream, alignment_bytes);
  if (engine_->live.is_watching())
    engine_->note_allocated(address, facade, device, size_bytes, stream);
  return address;
}

void CachingManagedAllocator::free_or_log(void* address) noexcept {
  if (free(address) == FreeResult::kNotOurs) {
    log(LogLevel::kError,
        "deallocate({}): this resource did not allocate the memory; nothing was freed", address);
  }
}

void CachingManagedAllocator::free_after(void* address, int device, StreamHandle stream) noexcept {
  try {
    record_use(address, device, stream);
  } catch (const std::exception&) {
    // There is no memory to record the use.
    runtime().synchronize_stream(device, stream);
  }
  free_or_log(address);
}

// ---- uses and moves

bool CachingManagedAllocator::record_use(const void* address, int device, StreamHandle stream) {
  return record_use(address, DeviceStream::named(device, stream));
}

bool CachingManagedAllocator::wants_uses() const noexcept {
  return engine_->live.is_watching();
}

void CachingManagedAllocator::set_use_listener(std::function<void(bool wants_uses)> listener) {
  engine_->live.set_listener(std::move(listener));
}

void CachingManagedAllocator::set_search_signs(std::function<SearchSign()> find) {
  engine_->spill_limit.set_find_sign(std::move(find));
}

bool CachingManagedAllocator::note_use(const void* address, std::size_t size_bytes,
                                       StreamHandle stream, std::uint8_t access) {
  const live::UseRange use{address_of(address), size_bytes, access};
  return note_uses(stream, {&use, 1}, live::Launch::kKernel) == nullptr;
}

const void* CachingManagedAllocator::note_uses(StreamHandle stream,
                                               std::span<const live::UseRange> uses,
                                               live::Launch launch) {
  if (!wants_uses()) return nullptr;
  std::optional<int> device;
  for (const live::UseRange& use : uses) {
    const auto* address = reinterpret_cast<const void*>(use.address);
    const auto block = find(address);
    if (!block || !block->live) return address;
    if (!device) device = block->location.is_device() ? block->location.index : block->device;
  }
  if (device) note_uses(*device, stream, uses, launch);
  return nullptr;
}

void CachingManagedAllocator::note_uses(int device, StreamHandle stream,
                                        std::span<const live::UseRange> uses,
                                        live::Launch launch) noexcept {
  engine_->note_uses(device, stream, uses, launch);
}

void CachingManagedAllocator::step_boundary() noexcept {
  engine_->live.step_boundary();
}

live::LiveFigures CachingManagedAllocator::live_figures() const {
  return engine_->live.figures();
}

std::vector<sharing::SharingFigures> CachingManagedAllocator::sharing_figures() const {
  return engine_->device_sharing.figures();
}

bool CachingManagedAllocator::record_use(const void* address, const DeviceStream& stream) {
  if (!engine_->uses.record_use(address, stream)) return false;
  if (wants_uses()) {
    const live::UseRange use{.address = address_of(address), .size_bytes = 1};
    // The kernel is on its stream already, so the function waits for no turn.
    engine_->live.note_uses(stream.device, stream.handle, {&use, 1});
  }
  return true;
}

bool CachingManagedAllocator::record_use_of_all(const void* address, int device) {
  return engine_->uses.record_use_of_all(address, device);
}

std::vector<DeviceStream> CachingManagedAllocator::uses_of(const void* address) const {
  return engine_->uses.uses_of(address);
}

bool CachingManagedAllocator::mark_exported(const void* address) {
  return engine_->uses.mark_exported(address);
}

void CachingManagedAllocator::mark_live_exported() {
  engine_->uses.mark_live_exported();
}

void CachingManagedAllocator::set_pinned(const void* address, bool pinned) {
  engine_->uses.set_pinned(address, pinned);
}

void CachingManagedAllocator::wait_for_uses(const void* address) {
  engine_->uses.wait_for_uses(address);
}

void CachingManagedAllocator::note_left_host(const void* address) {
  engine_->mover.note_left(address, Place::host());
}

bool CachingManagedAllocator::note_places(const void* address, PlaceSet places) {
  return engine_->mover.note_places(address, places);
}

void CachingManagedAllocator::note_place_again(const void* address, Place place) {
  engine_->mover.note_place_again(address, place);
}

void CachingManagedAllocator::set_places_source(std::function<void()> source) {
  engine_->places_source = std::move(source);
}

MovedStorage* CachingManagedAllocator::move(void* address, const Move& move) {
  MovedStorage* record = engine_->mover.move(address, move);
  if (move.destination.is_device()) engine_->follow_placement();
  return record;
}

bool CachingManagedAllocator::prefetch(const void* address, std::size_t size_bytes,
                                       Place destination, int stream_device, StreamHandle stream) {
  return engine_->mover.prefetch(address, size_bytes, destination, stream_device, stream);
}

bool CachingManagedAllocator::advise(const void* address, const WantedPlacement& wanted) {
  return engine_->mover.advise(address, wanted);
}

void CachingManagedAllocator::release(MovedStorage* record) noexcept {
  if (in_forked_child()) return;
  if (void* address = engine_->mover.detach(record)) free(address);
}

// ---- memory given back, streams

void CachingManagedAllocator::release_cached() {
  engine_->reclaimer.release_cached();
}

void CachingManagedAllocator::release_cached_of(Facade facade) {
  engine_->reclaimer.release_cached_of(facade);
}

void CachingManagedAllocator::release_cached_of(int device, std::uint64_t private_pool) {
  engine_->reclaimer.release_cached_of(device, private_pool);
}

std::vector<DeviceStream> CachingManagedAllocator::streams_of(int device) const {
  return engine_->stream_pools.streams_of(device);
}

void CachingManagedAllocator::finish_prefetches() noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.sender.finish_prefetches();
}

std::vector<void*> CachingManagedAllocator::forget_device(int device) {
  return engine_->device_reset.forget(device);
}

bool CachingManagedAllocator::wait_for_device(int device) {
  return engine_->machine.stream_work.wait_for_device(device);
}

void CachingManagedAllocator::forget_stream(int device, StreamHandle stream) {
  engine_->stream_pools.retire_stream(device, stream);
}

void CachingManagedAllocator::begin_capture(const DeviceStream& stream) {
  engine_->machine.check_device(stream.device);
  if (!engine_->machine.in_forked_child()) engine_->machine.stream_work.begin_capture(stream);
}

void CachingManagedAllocator::end_capture(const DeviceStream& stream) noexcept {
  if (!engine_->machine.in_forked_child()) engine_->machine.stream_work.end_capture(stream);
}

void CachingManagedAllocator::decay(std::chrono::steady_clock::time_point now) {
  engine_->decay.decay(now);
}

void CachingManagedAllocator::add_pressure_callback(PressureCallback callback) {
  engine_->pressure_callbacks.add(std::move(callback));
}

// ---- private pools

std::uint64_t CachingManagedAllocator::begin_private_pool(int device, std::uint64_t id,
                                                          StreamFilter routed, bool capturing) {
  return engine_->private_memory.begin(device, id, std::move(routed), capturing);
}

bool CachingManagedAllocator::end_private_pool(int device, std::uint64_t id, std::uint64_t scope) {
  return engine_->private_memory.end(device, id, scope);
}

bool CachingManagedAllocator::release_private_pool(int device, std::uint64_t id) {
  return engine_->private_memory.release(device, id);
}

void CachingManagedAllocator::retain_private_pool(int device, std::uint64_t id) {
  engine_->private_memory.retain(device, id);
}

std::size_t CachingManagedAllocator::private_pool_users(int device, std::uint64_t id) const {
  return engine_->private_memory.users(device, id);
}

bool CachingManagedAllocator::give_whole_pages(int device, std::uint64_t id) {
  return engine_->private_memory.give_whole_pages(device, id);
}

std::vector<PrivateBlock> CachingManagedAllocator::private_blocks(int device,
                                                                  std::uint64_t id) const {
  return engine_->private_memory.blocks(device, id);
}

void CachingManagedAllocator::restore_private_pool(int device, std::uint64_t id,
                                                   const std::vector<PrivateBlock>& blocks) {
  engine_->private_memory.restore(device, id, blocks);
}

// ---- conversions

void* CachingManagedAllocator::allocate_for_conversion(int device, std::size_t size_bytes) {
  engine_->introspection.change_budget_for_conversion(size_bytes, true);
  try {
    void* address = allocate(Facade::kHost, device, size_bytes, nullptr);
    engine_->introspection.note_conversion(size_bytes);
    return address;
  } catch (...) {
    engine_->introspection.change_budget_for_conversion(size_bytes, false);
    throw;
  }
}

// ---- questions, statistics, traces

bool CachingManagedAllocator::has_taken(const void* address) const {
  return engine_->introspection.has_taken(address);
}

std::optional<BlockDescription> CachingManagedAllocator::find(const void* address) const {
  return engine_->introspection.find(address);
}

std::map<Place, std::size_t> CachingManagedAllocator::residency(const void* address,
                                                                std::size_t size_bytes) const {
  return engine_->introspection.residency(address, size_bytes);
}

Statistics CachingManagedAllocator::statistics() const {
  if (engine_->places_source) engine_->places_source();
  return engine_->introspection.statistics();
}

Figures CachingManagedAllocator::figures() const {
  return engine_->introspection.figures();
}

FigureStore& CachingManagedAllocator::figure_store() {
  return engine_->machine.figure_store;
}

void CachingManagedAllocator::reset_peaks(Facade facade, int device) {
  engine_->introspection.reset_peaks(facade, device);
}

void CachingManagedAllocator::reset_totals(Facade facade, int device) {
  engine_->introspection.reset_totals(facade, device);
}

std::vector<SegmentDescription> CachingManagedAllocator::segments() const {
  return engine_->introspection.segments();
}

const HintCounters& CachingManagedAllocator::hints() const {
  return engine_->machine.figure_store.hints();
}

const std::vector<DeviceDescription>& CachingManagedAllocator::devices() const {
  return engine_->machine.devices;
}

const DeviceRuntime& CachingManagedAllocator::runtime() const {
  return engine_->machine.runtime;
}

std::map<std::string, std::uint64_t> CachingManagedAllocator::runtime_calls() const {
  return engine_->machine.runtime.calls();
}

const Configuration& CachingManagedAllocator::configuration() const {
  return engine_->machine.configuration;
}

std::size_t CachingManagedAllocator::budget_bytes() const {
  return engine_->introspection.budget_bytes();
}

HostBacking CachingManagedAllocator::host_backing() const {
  return engine_->machine.span_memory.host_backing();
}

std::size_t CachingManagedAllocator::free_bytes(int device, const MemoryFigures& driver) const {
  if (engine_->places_source) engine_->places_source();
  return engine_->introspection.free_bytes(device, driver);
}

void CachingManagedAllocator::set_memory_observer(MemoryObserver* observer) {
  engine_->introspection.set_memory_observer(observer);
}

void CachingManagedAllocator::set_device_limit(int device, std::size_t most_bytes) {
  engine_->introspection.set_device_limit(device, most_bytes);
}

void CachingManagedAllocator::note_copy(CopyReason reason, std::size_t size_bytes) {
  engine_->introspection.note_copy(reason, size_bytes);
}

void CachingManagedAllocator::note_materialization(std::size_t copied_bytes, bool steal) {
  engine_->introspection.note_materialization(copied_bytes, steal);
}

std::string CachingManagedAllocator::start_trace(const std::string& file) {
  return engine_->introspection.start_trace(file);
}

void CachingManagedAllocator::stop_trace() noexcept {
  if (!in_forked_child()) engine_->machine.trace.stop();
}

void CachingManagedAllocator::mark_trace(std::string_view text) noexcept {
  if (!in_forked_child()) engine_->machine.trace.mark(text);
}

void CachingManagedAllocator::trace_call_site(const void* address, std::string_view site) noexcept {
  if (!wants_call_sites_ || site.empty() || in_forked_child()) return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.allocated_at(trace.now(), address, site);
}

void CachingManagedAllocator::trace_caller(const void* address, const void* caller) noexcept {
  if (!wants_call_sites_ || in_forked_child()) return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.allocated_by(trace.now(), address, caller);
}

void CachingManagedAllocator::trace_kernel(int device, StreamHandle stream, std::uint64_t amount,
                                           int type, std::span<const TracedRange> ranges) noexcept {
  if (in_forked_child() || device < 0 || static_cast<std::size_t>(device) >= devices().size())
    return;
  TraceRecorder& trace = engine_->machine.trace;
  trace.kernel_started(trace.now(), device, stream, amount, static_cast<std::uint8_t>(type),
                       ranges);
}

void CachingManagedAllocator::trace_order(int device, StreamHandle stream, const void* signal,
                                          int order) noexcept {
  if (in_forked_child() || device < 0 || static_cast<std::size_t>(device) >= devices().size())
    return;
  TraceRecorder& trace = engine_->machine.trace;
  if (order < 0) {
    trace.signalled(trace.now(), device, stream, signal);
  } else if (order <= kLastTraceWait) {
    trace.waited(trace.now(), device, stream, signal, static_cast<TraceWait>(order));
  }
}

void CachingManagedAllocator::before_fork() noexcept {
  engine_->fork_guard.before_fork();
}

void CachingManagedAllocator::after_fork_in_parent() noexcept {
  engine_->fork_guard.after_fork_in_parent();
}

void CachingManagedAllocator::after_fork_in_child() noexcept {
  engine_->fork_guard.after_fork_in_child();
}

bool CachingManagedAllocator::in_forked_child() const {
  return engine_->machine.in_forked_child();
}

void CachingManagedAllocator::check_invariants() const {
  engine_->introspection.check_invariants();
}

}  // namespace uvm
