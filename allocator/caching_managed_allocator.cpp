// Each function forwards to the part that implements it. allocate() and free() are in
// engine/fast_path.cpp.
#include <uvmalloc/allocator.hpp>

#include <bit>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "allocator/engine/engine.hpp"
#include "allocator/fork/forks.hpp"
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

bool CachingManagedAllocator::record_use(const void* address, int device, StreamHandle stream) {
  return record_use(address, DeviceStream::named(device, stream));
}

bool CachingManagedAllocator::record_use(const void* address, const DeviceStream& stream) {
  if (!engine_->uses.record_use(address, stream)) return false;
  if (engine_->live.is_watching()) {
    const live::UseRange use{.address = address_of(address), .size_bytes = live::kToEndOfBlock};
    // The kernel is already launched, so report its use without waiting for a turn on the device.
    engine_->live.note_uses(stream.device, stream.handle, {&use, 1});
  }
  return true;
}

MovedStorage* CachingManagedAllocator::move(void* address, const MoveRequest& move) {
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
  if (engine_->machine.in_forked_child()) return;
  if (void* address = engine_->mover.detach(record)) free(address);
}

void CachingManagedAllocator::release_cached() {
  engine_->reclaimer.release_cached();
}

void CachingManagedAllocator::release_cached_of(Facade facade) {
  engine_->reclaimer.release_cached_of(facade);
}

std::optional<BlockDescription> CachingManagedAllocator::find(const void* address) const {
  return engine_->introspection.find(address);
}

Statistics CachingManagedAllocator::statistics() const {
  if (engine_->places_source) engine_->places_source();
  return engine_->introspection.statistics();
}

void CachingManagedAllocator::reset_peaks(Facade facade, int device) {
  engine_->machine.check_device(device);
  ThreadCaches::StopTheWorld stopped(engine_->caches);
  engine_->caches.peaks().reset_peaks(engine_->state.counter_index(facade, device));
  engine_->caches.aggregate();
  const HeapGuard heap(engine_->state);
  heap->statistics.reset_peaks(facade, device);
}

void CachingManagedAllocator::reset_totals(Facade facade, int device) {
  engine_->machine.check_device(device);
  ThreadCaches::StopTheWorld stopped(engine_->caches);
  const std::size_t place = engine_->state.counter_index(facade, device);
  engine_->caches.peaks().reset_totals(place, engine_->caches.sum(place));
  const HeapGuard heap(engine_->state);
  heap->statistics.reset_totals(facade, device);
}

}  // namespace uvm
