// The allocator of this process. It is made at most once, at first need, from the environment's
// configuration. It is never destroyed, because exit handlers of other libraries may still free
// into it. Making it initialises the driver. So it is made when the program uses the device; for
// CPU tensors alone, only if the program has initialised the driver. It registers the handlers for
// fork and, if configured, the report at exit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "allocator/interface.hpp"

namespace uvm {

struct Activation {
  CachingManagedAllocator* allocator = nullptr;  // nullptr: not active
  std::string reason;                            // why not, one line
};

// The configuration of this process; parsed once, errors logged once.
const ParsedConfiguration& process_configuration();

// Thread-safe; the first call decides for the life of the process. If the allocator cannot be
// active, one line says why.
const Activation& activate_process_allocator();

// Why this process does not use uvmalloc, which the log has said in one line. The report says it
// again at exit unless the allocator is active then. The first reason counts.
void note_inactive(const std::string& reason);
const std::string* inactive_reason() noexcept;  // nullptr: none was noted

// The allocator if it is active; nullptr otherwise. Makes nothing.
CachingManagedAllocator* process_allocator() noexcept;

// Whether the program has initialised the driver, so that activate_process_allocator() would not be
// the first to do so. Initialises nothing.
bool is_driver_initialized();

// Whether CPU tensors are managed at once, which may initialise the driver: by UVMALLOC_CPU, or
// because the program has switched unified memory on itself.
bool manages_cpu_tensors_at_once();
void set_manages_cpu_tensors_at_once() noexcept;

// The host memory that a framework gets on this thread; kManaged until set. The setter returns the
// previous value.
enum class HostMemory : unsigned char {
  kMalloc,         // for memory that never goes to a device
  kManaged,        // from UVMALLOC_HOST_THRESHOLD on
  kAlwaysManaged,  // whatever its size
};
HostMemory set_host_memory(HostMemory memory) noexcept;
HostMemory host_memory() noexcept;

// UVMALLOC_MOVE; the default while there is no memory to read it.
MoveMode configured_move_mode() noexcept;
// How a framework's tensors move, as configured until set.
void set_move_mode(MoveMode mode) noexcept;
// The mode of this process, or kAlias if this thread has set that.
MoveMode move_mode() noexcept;
// Returns the previous value.
bool set_thread_aliases(bool aliases) noexcept;

// Whether a framework's memory is managed: its plugin has taken its allocators' places, and there
// is a device for it. Initialises nothing: before the program has initialised the driver, true
// where this machine has one.
bool is_framework_enabled();
// Whether the plugin is installed, which the plugin sets.
bool is_framework_installed() noexcept;
void set_framework_installed(bool installed) noexcept;

// Allocations that a framework's own allocators made although they were replaced. Only its plugin
// can count them.
struct NativeAllocations {
  std::uint64_t device = 0;
  std::uint64_t pinned = 0;
  std::uint64_t host = 0;
};
void set_native_allocations(std::function<NativeAllocations()> source);

// Allocation calls of CUDA that a preloaded library stands before.
struct InterposedCalls {
  struct Call {
    std::string_view name;
    std::uint64_t served = 0;
    std::uint64_t excluded = 0;   // by UVMALLOC_EXCLUDE and the libraries that are always excluded
    std::uint64_t no_memory = 0;  // left to CUDA, because there was none
    std::uint64_t left = 0;       // left to CUDA on purpose
    std::uint64_t beyond_limit = 0;  // refused, because of a budget or a limit of this process
  };
  std::vector<Call> calls;                   // those that were made
  std::vector<std::string> static_runtimes;  // files that hold CUDA's static runtime
};
void set_interposed_calls(std::function<InterposedCalls()> source);

// Host memory that the plugin took from malloc.
void count_unmanaged_host(std::size_t size_bytes) noexcept;

// The report on this process as JSON (docs/report.md) and as text for people.
std::string report_json();
std::string report_text();
// The same on a process that has left its figures in a file (figure_store.hpp); empty, and why in
// one line: it is no such file.
std::string report_json_of(const std::string& figures_file, std::string* why_not);

// What this machine can do and what is configured, as JSON: runtime, devices, settings, verdict.
// Makes no allocator.
std::string doctor_json();

// The version of uvmalloc, "0.1.0".
const char* version();

}  // namespace uvm
