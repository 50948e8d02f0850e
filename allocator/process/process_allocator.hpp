// The allocator of this process. It is made at most once, when first needed, from the configuration
// in the environment. It is never destroyed, because exit handlers may still free into it.
//
// Making the allocator initialises the driver. So the allocator is made when the program uses a
// device, or uses host memory after the program has initialised the driver. Making it also
// registers the fork handlers and, if configured, the report at exit. All functions are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "allocator/interface.hpp"

namespace uvm {

struct Activation {
  CachingManagedAllocator* allocator = nullptr;  // nullptr: uvmalloc is not active
  std::string reason;                            // why it is not active, in one line
};

// The configuration of this process. It is parsed once, and its errors are logged once.
const ParsedConfiguration& process_configuration();

// Makes the allocator. The result of the first call holds for the life of the process. If the
// allocator cannot be active, one line in the log says why.
const Activation& activate_process_allocator();

// Records why this process does not use uvmalloc. The caller has already logged the reason. The
// report at exit repeats the reason if the allocator is not active then. Only the first reason is
// kept.
void note_inactive(const std::string& reason);
const std::string* inactive_reason() noexcept;  // nullptr if none was recorded

// Returns the allocator, or nullptr if it is not active. Makes nothing.
CachingManagedAllocator* process_allocator() noexcept;

// Returns whether activate_process_allocator() was called and the allocator cannot be active.
bool has_activation_failed() noexcept;

// Returns whether the program has already initialised the driver. Initialises nothing.
bool is_driver_initialized();

// CUDA allocation calls that the preload library intercepts.
struct InterposedCalls {
  struct Call {
    std::string_view name;
    std::uint64_t served = 0;
    std::uint64_t excluded = 0;   // by UVMALLOC_EXCLUDE, or from a library that is always excluded
    std::uint64_t no_memory = 0;  // forwarded to CUDA, because memory was short
    std::uint64_t left = 0;       // forwarded to CUDA on purpose
    std::uint64_t beyond_limit = 0;  // refused by a budget or a limit of this process
  };
  std::vector<Call> calls;                   // functions that the program called
  std::vector<std::string> static_runtimes;  // files that contain CUDA's static runtime
};
void set_interposed_calls(std::function<InterposedCalls()> source);

// Counts host memory that a plugin took from malloc.
void count_unmanaged_host(std::size_t size_bytes) noexcept;

// Stores the report's facts about the process again, after one of them has changed.
void describe_process() noexcept;

// Return the report on this process as JSON (docs/reference/report.md), and as readable text.
std::string report_json();
std::string report_text();
// Returns the report on a process that has left its figures in a file (figure_store.hpp). If the
// file holds no readable figures, returns an empty string and sets `*why_not` to one line.
std::string report_json_of(const std::string& figures_file, std::string* why_not);

// Returns what this machine can do and which settings apply, as JSON: runtime, devices, settings,
// verdict. Makes no allocator.
std::string doctor_json();

// The version of uvmalloc, "0.2.0".
const char* version();

}  // namespace uvm
