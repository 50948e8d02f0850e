#include "reserving_runtime.hpp"

#include <sys/mman.h>

#include <new>

namespace uvm::bench {
namespace {

constexpr std::size_t kPageBytes = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes) {
  return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

RuntimeStatus failure(RuntimeError error) {
  RuntimeStatus status;
  status.error = error;
  return status;
}

}  // namespace

ReservingRuntime::ReservingRuntime() : size_bytes_(kMostBytes) {
  void* range = MAP_FAILED;
  for (;; size_bytes_ /= 2) {
    range = mmap(nullptr, size_bytes_ + kPageBytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) break;
    if (size_bytes_ <= kLeastBytes) throw std::bad_alloc();
  }
  range_ = static_cast<std::byte*>(range);
  const auto address = reinterpret_cast<std::uintptr_t>(range);
  first_ = range_ + (round_up(address) - address);
}

ReservingRuntime::~ReservingRuntime() {
  munmap(range_, size_bytes_ + kPageBytes);
}

RuntimeStatus ReservingRuntime::describe(int device, DeviceDescription* out) const {
  if (device != 0) return failure(RuntimeError::kNoDevice);
  *out = {};
  out->name = "address space";
  out->total_bytes = size_bytes_;
  out->capabilities.managed_memory = true;
  out->capabilities.concurrent_managed_access = true;
  out->capabilities.migrates_on_fault = true;
  out->capabilities.discard = true;
  return {};
}

RuntimeStatus ReservingRuntime::memory_figures(int, MemoryFigures* out) const {
  *out = {size_bytes_ - used_bytes_.load(std::memory_order_relaxed), size_bytes_};
  return {};
}

RuntimeStatus ReservingRuntime::pointer_attributes(const void*, PointerAttributes* out) const {
  *out = {};
  return {};
}

RuntimeStatus ReservingRuntime::allocate_managed(int, std::size_t size_bytes, void** out) const {
  const std::size_t bytes = round_up(size_bytes);
  std::size_t begin = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > size_bytes_ - begin) return failure(RuntimeError::kOutOfMemory);
  } while (!used_bytes_.compare_exchange_weak(begin, begin + bytes, std::memory_order_relaxed));
  *out = first_ + begin;
  return {};
}

RuntimeStatus ReservingRuntime::handle(void** out) {
  static char distinct;  // handles are compared with nullptr, never dereferenced
  *out = &distinct;
  return {};
}

}  // namespace uvm::bench
