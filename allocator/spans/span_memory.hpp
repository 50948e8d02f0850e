// Where the memory of spans comes from: managed memory of the driver, or for the host facade
// ordinary memory of the kernel where that serves better (host_backing.hpp); and how large spans
// are.
//
// A span is large where its pages can be given back one by one: free blocks of two spans are never
// joined, and a span takes address space alone. Elsewhere one live block keeps all touched pages of
// its span, so spans are small.
//
// Thread-safe, without a lock. Calls the driver, so it is called without the allocator's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/allocator/spans/span_store.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

class SpanMemory {
 public:
  SpanMemory(const DeviceRuntime& runtime, const std::vector<DeviceDescription>& devices,
             const Configuration& configuration, std::size_t budget_bytes);
  ~SpanMemory();
  SpanMemory(const SpanMemory&) = delete;
  SpanMemory& operator=(const SpanMemory&) = delete;

  HostBacking host_backing() const { return host_backing_; }  // kManaged or kOrdinary

  // Whether pages of the span can be given back while others of it are in use: pages of ordinary
  // memory by the kernel, a device's pages by a driver that discards. A discard leaves the host's
  // own pages with the driver until the span is freed (nvidia-uvm up to 595:
  // va_block_discard_locked ends their residency, block_kill frees them), and does nothing for an
  // integrated device.
  bool gives_pages_back(const Span& span) const;

  // Fills in a span of that facade and device for a request of `least_bytes`, a multiple of 2 MiB,
  // or says why it cannot be had. `size_bytes` is then what was asked for last.
  RuntimeStatus take(std::size_t least_bytes, Span* span);
  RuntimeStatus give_back(const Span& span) const noexcept;

 private:
  std::size_t wanted_bytes(const Span& span, std::size_t least_bytes) const;
  RuntimeStatus try_to_take(Span* span) const;

  const DeviceRuntime& runtime_;
  const std::vector<DeviceDescription>& devices_;
  const std::optional<std::size_t> span_bytes_;
  const std::size_t budget_bytes_;
  const std::size_t sharers_;  // allocators of the process when this one was made, it included
  const HostBacking host_backing_;
  // What the next span may have: where less than it wanted was to be had, twice of what the last
  // got.
  std::atomic<std::size_t> most_bytes_ = SIZE_MAX;
};

}  // namespace uvm
