// A trace of everything that the allocator does (docs/trace.md). Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class Tracing {
 public:
  Tracing(Engine& engine, bool wants_call_sites)
      : engine_(&engine), wants_call_sites_(wants_call_sites) {}

  // start() returns an empty string, or in one line why the trace cannot begin.
  std::string start(const std::string& file);
  void stop() noexcept;
  void mark(std::string_view text) noexcept;
  // Whether the configuration wants call sites in traces.
  bool wants_call_sites() const noexcept { return wants_call_sites_; }
  // For the trace, if it has call sites: the place in the program that allocated the block at
  // `address`, which the caller holds. `site` is text; `caller` is a return address. Call them
  // without a lock of the allocator.
  void call_site(const void* address, std::string_view site) noexcept;
  void caller(const void* address, const void* caller) noexcept;
  // Work that the program puts on its streams, for the trace. uvmalloc_trace_kernel() and
  // uvmalloc_trace_order() describe the arguments. They do nothing if no trace is written.
  void kernel(int device, StreamHandle stream, std::uint64_t amount, int type,
              std::span<const TracedRange> ranges) noexcept;
  void order(int device, StreamHandle stream, const void* signal, int order) noexcept;

 private:
  Engine* engine_;
  bool wants_call_sites_;
};

inline Tracing CachingManagedAllocator::tracing() const {
  return Tracing(*engine_, wants_call_sites_);
}

}  // namespace uvm
