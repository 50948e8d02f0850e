// The allocator of this process. It is made at most once, at first need, from the environment's
// configuration. It is never destroyed, because exit handlers of other libraries may still free
// into it.
//
// Making it initialises the driver. So it is made when the program uses the device; for host memory
// alone, only if the program has initialised the driver. It registers the handlers for fork and, if
// configured, the report at exit. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "allocator/interface.hpp"

namespace uvm {

struct Activation {
  CachingManagedAllocator* allocator = nullptr;  // nullptr: not active
  std::string reason;                            // why not active, one line
};

// The configuration of this process. Parsed once; errors are logged once.
const ParsedConfiguration& process_configuration();

// Makes the allocator; the first call decides for the life of the process. If the allocator cannot
// be active, one line says why.
const Activation& activate_process_allocator();

// Records why this process does not use uvmalloc; the log has said it in one line. The report at
// exit repeats it, unless the allocator is active then. The first reason counts.
void note_inactive(const std::string& reason);
const std::string* inactive_reason() noexcept;  // nullptr: none was recorded

// The allocator if it is active, else nullptr. Makes nothing.
CachingManagedAllocator* process_allocator() noexcept;

// Whether activate_process_allocator() was called, and the allocator cannot be active.
bool has_activation_failed() noexcept;

// Whether the program has initialised the driver, so that activate_process_allocator() would not be
// the first to do so. Initialises nothing.
bool is_driver_initialized();

// CUDA allocation calls that the preload library intercepts.
struct InterposedCalls {
  struct Call {
    std::string_view name;
    std::uint64_t served = 0;
    std::uint64_t excluded = 0;   // by UVMALLOC_EXCLUDE, or by libraries that are always excluded
    std::uint64_t no_memory = 0;  // forwarded to CUDA, because there was no memory
    std::uint64_t left = 0;       // forwarded to CUDA on purpose
    std::uint64_t beyond_limit = 0;  // refused by a budget or a limit of this process
  };
  std::vector<Call> calls;                   // calls that were made
  std::vector<std::string> static_runtimes;  // files that hold CUDA's static runtime
};
void set_interposed_calls(std::function<InterposedCalls()> source);

// Counts host memory that a plugin took from malloc.
void count_unmanaged_host(std::size_t size_bytes) noexcept;

// Stores the report's facts about the process anew; one of them has changed.
void describe_process() noexcept;

// The report on this process, as JSON (docs/report.md) and as text for people.
std::string report_json();
std::string report_text();
// The report on a process that has left its figures in a file (figure_store.hpp). Empty, with the
// reason in one line, if the file is no such file.
std::string report_json_of(const std::string& figures_file, std::string* why_not);

// What this machine can do and which settings are in force, as JSON: runtime, devices, settings,
// verdict. Makes no allocator.
std::string doctor_json();

// The version of uvmalloc, "0.1.0".
const char* version();

}  // namespace uvm
