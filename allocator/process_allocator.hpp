// The allocator of this process: made at most once, on first need, from the environment's
// configuration, and never destroyed, since other libraries' exit handlers may still free into it.
// Making it initialises the driver, so it is not made before memory is asked for. It registers the
// handlers for fork and, where asked for, the report at exit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <uvmalloc/allocator/caching_managed_allocator.hpp>

namespace uvm {

struct Activation {
  CachingManagedAllocator* allocator = nullptr;  // nullptr: not active
  std::string reason;                            // why not, one line
};

// What this process is configured to be; parsed once, errors logged once.
const ParsedConfiguration& process_configuration();

// Thread-safe; the first call decides for the life of the process. Where it cannot be active, one
// line says why.
const Activation& activate_process_allocator();

// The allocator if it is active already; makes nothing.
CachingManagedAllocator* process_allocator() noexcept;

// Whether host memory that a framework allocates on this thread is managed, true until set; returns
// what was. For code whose host memory is scratch that never goes to a device.
bool set_host_managed(bool managed) noexcept;
bool host_managed() noexcept;

// Figures that only a framework's plugin knows.
struct FrameworkFigures {
  std::uint64_t native_device_allocations =
      0;  // by the framework's own allocators since they were replaced
  std::uint64_t native_pinned_allocations = 0;
  std::uint64_t native_host_allocations = 0;
  std::uint64_t unmanaged_host_allocations = 0;  // below the threshold: from malloc
  std::uint64_t unmanaged_host_bytes = 0;
};
void set_framework_figures(std::function<FrameworkFigures()> source);

// The report on this process as JSON (docs/report.md) and as text for people.
std::string report_json();
std::string report_text();

// What this machine can do and what is configured, as JSON: runtime, devices, settings, verdict.
// Makes no allocator.
std::string doctor_json();

// The version of uvmalloc, "0.1.0".
const char* version();

}  // namespace uvm
