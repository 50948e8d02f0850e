// Takes the memory of spans from the driver or, for host memory, from the kernel
// (host_backing.hpp). Decides how large spans are.
//
// Spans are large if their pages can be returned one by one. Then the unused part costs only
// address space, and more free blocks can be joined, because blocks of different spans are never
// joined. Otherwise spans are small, because one live block prevents the return of all touched
// pages of its span.
//
// Thread-safe without a lock. Calls the driver, so do not call it with the state lock held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>
#include "allocator/spans/span_store.hpp"

namespace uvm {

class SpanMemory {
 public:
  SpanMemory(const DeviceRuntime& runtime, const std::vector<DeviceDescription>& devices,
             const Configuration& configuration, std::size_t budget_bytes);
  ~SpanMemory();
  SpanMemory(const SpanMemory&) = delete;
  SpanMemory& operator=(const SpanMemory&) = delete;

  HostBacking host_backing() const { return host_backing_; }  // kManaged or kOrdinary

  // Returns whether pages of the span can be returned while others are in use. The kernel takes
  // back pages of ordinary memory; a driver that supports discards takes back a device's pages.
  // After a discard, the driver keeps host pages until the span is freed (nvidia-uvm up to 595:
  // va_block_discard_locked ends their residency, block_kill frees them). A discard does nothing
  // for an integrated device.
  bool gives_pages_back(const Span& span) const;

  // Takes memory for a request of `least_bytes`, a multiple of 2 MiB, and fills in the span. Its
  // facade, its device, and whether it is reserved or ordinary, are already set. A reserved span
  // gets exactly `least_bytes`. On failure `size_bytes` is the size of the last attempt.
  RuntimeStatus take(std::size_t least_bytes, Span* span);
  RuntimeStatus give_back(const Span& span) const noexcept;

 private:
  std::size_t wanted_bytes(const Span& span, std::size_t least_bytes) const;
  RuntimeStatus try_to_take(Span* span) const;

  const DeviceRuntime& runtime_;
  const std::vector<DeviceDescription>& devices_;
  const std::optional<std::size_t> span_bytes_;
  const std::size_t budget_bytes_;
  const std::size_t sharers_;  // allocators in the process when this one was made
  const HostBacking host_backing_;
  // Limits the size of the next span. If a request had to be reduced, the limit is twice the size
  // that was granted; otherwise there is no limit.
  std::atomic<std::size_t> most_bytes_ = SIZE_MAX;
};

}  // namespace uvm
