#include "allocator/engine/reserved_addresses.hpp"

#include <new>
#include <stdexcept>

#include <fmt/format.h>

#include "allocator/engine/engine.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

constexpr RequestShape kShape{.is_private = true, .whole_pages = true};

StreamKey key_of(int device) {
  return {Facade::kDevice, device, nullptr, StreamKey::kReserved, 0};
}

Request request_of(int device, std::size_t size_bytes) {
  return Request::make(Facade::kDevice, device, size_bytes, nullptr, {}, kShape);
}

std::size_t& promised_bytes(const LockedHeap& heap, int device) {
  return heap->promised_bytes[static_cast<std::size_t>(device)];
}

}  // namespace

char* ReservedAddresses::reserve(int device, std::size_t size_bytes) {
  engine_.machine.check_device(device);
  const Request request = request_of(device, size_bytes);
  Refusal refusal;
  char* base = engine_.grower.reserve(request, &refusal);
  if (base == nullptr) engine_.out_of_memory.raise(request, refusal);
  return base;
}

void ReservedAddresses::release(const char* base) noexcept {
  {
    const HeapGuard heap(engine_.state);
    if (Span* span = heap->spans.reserved_span_at(base)) span->reserved = false;
  }
  release_pages();
}

bool ReservedAddresses::is_free(const char* address, std::size_t size_bytes) const {
  const HeapGuard heap(engine_.state);
  Span* span = heap->spans.reserved_span_at(address);
  return span != nullptr && SpanStore::find_at(span, address, size_bytes).span != nullptr;
}

void ReservedAddresses::promise(int device, std::size_t size_bytes) {
  engine_.machine.check_device(device);
  engine_.with_room(request_of(device, size_bytes), [&](const LockedHeap& heap) {
    const Refusal refusal = limits::check(heap, key_of(device), size_bytes, size_bytes);
    if (refusal.ok()) promised_bytes(heap, device) += size_bytes;
    return refusal;
  });
}

void ReservedAddresses::promise_beyond_limits(int device, std::size_t size_bytes) noexcept {
  const HeapGuard heap(engine_.state);
  promised_bytes(heap, device) += size_bytes;
}

void ReservedAddresses::withdraw(int device, std::size_t size_bytes) noexcept {
  const HeapGuard heap(engine_.state);
  promised_bytes(heap, device) -= size_bytes;
}

// Takes pages at the address, and subtracts their bytes from the promise.
Found ReservedAddresses::take_at(const Request& request, const char* address) {
  HintDispatcher::Later hints(engine_.hints, request.device);
  const HeapGuard heap(engine_.state);
  // While the private pool has a user, its pages serve no other request.
  if (heap->private_pools.users(request.device, StreamKey::kReserved) == 0)
    heap->private_pools.retain(request.device, StreamKey::kReserved);
  const Found found = engine_.grower.take_at(heap, request, address, &hints.plan);
  if (found.block != nullptr) promised_bytes(heap, request.device) -= request.size_bytes;
  return found;
}

void ReservedAddresses::place(int device, char* address, std::size_t size_bytes) {
  Request request = request_of(device, size_bytes);
  const StreamPools::Opened opened = engine_.stream_pools.open(key_of(device), request.pool_class);
  request.pools = opened.pools;
  Found found = take_at(request, address);
  if (found.block == nullptr) {
    // Pages of a removed block may not be free yet: they wait for streams, or for host memory.
    release_pages();
    found = take_at(request, address);
  }
  if (found.block == nullptr) {
    throw std::logic_error(
        fmt::format("the addresses at {} are in use", static_cast<const void*>(address)));
  }
  engine_.finish_allocation(request, found);
  if (!engine_.live.is_watching()) return;
  try {
    engine_.note_allocated(address, Facade::kDevice, device, size_bytes, nullptr);
  } catch (const OutOfMemoryError&) {
    release_pages();
    const HeapGuard heap(engine_.state);
    promised_bytes(heap, device) += size_bytes;
    throw;
  }
}

void ReservedAddresses::remove(char* address) noexcept {
  if (engine_.live.is_watching()) engine_.live.freed(address);
  engine_.free_slow(address, nullptr);
  release_pages();
}

void ReservedAddresses::release_pages() noexcept {
  try {
    engine_.reclaimer.release_reserved();
  } catch (const std::bad_alloc&) {
    log(LogLevel::kWarning, "unmapped memory stays in use: no host memory to give it back");
  }
}

}  // namespace uvm
