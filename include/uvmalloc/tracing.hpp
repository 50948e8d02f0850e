// Writes a trace of everything that the allocator does (docs/reference/trace.md). Thread-safe.
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

  // start() returns an empty string, or one line that says why the trace cannot begin.
  std::string start(const std::string& file);
  void stop() noexcept;
  void mark(std::string_view text) noexcept;
  // Returns whether the configuration requests call sites in traces.
  bool wants_call_sites() const noexcept { return wants_call_sites_; }
  // Record the place in the program that allocated the block at `address`, if the trace has call
  // sites. The block must not be freed meanwhile. `site` is a string; `caller` is a return address.
  // Do not call these functions while you hold a lock of the allocator.
  void call_site(const void* address, std::string_view site) noexcept;
  void caller(const void* address, const void* caller) noexcept;
  // Record work that the program puts on its streams, if a trace is being written. For the
  // arguments see uvmalloc_trace_kernel() and uvmalloc_trace_order().
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
