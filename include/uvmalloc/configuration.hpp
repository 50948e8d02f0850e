// The settings of a user, parsed once from variables and overridable by API. docs/configuration.md
// is the table; known_settings() is the same table in code, and a test compares them. An unknown or
// malformed value is reported with the variable, the value and the accepted values. The default
// stays in force.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/log_level.hpp>
#include <uvmalloc/policy.hpp>

namespace uvm {

enum class MoveMode : unsigned char {
  kCopyOnWrite,  // a device move shares the bytes until one side is written
  kAlias,        // a device move shares the bytes for good: writes are seen on both sides
  kCopy,         // a device move copies, as without uvmalloc
};

// The memory of spans of the host facade.
enum class HostBacking : unsigned char {
  kAuto,      // ordinary memory where every device uses the host's page tables, else managed memory
  kManaged,   // of the driver
  kOrdinary,  // of the kernel; a forked child shares it copy on write
};

// When CPU tensors start to be managed.
enum class CpuTensors : unsigned char {
  kAuto,     // the program has initialised the driver and uses a device
  kManaged,  // at once, which may initialise the driver
};

// Whether a preloaded library serves the program's own allocation calls of CUDA; kAuto: in
// processes without a framework whose allocators are replaced.
enum class ServeCuda : std::uint8_t { kNo, kYes, kAuto };

// The kind of memory that CUDA's questions about a pointer of cudaMalloc answer with.
enum class PointerType : std::uint8_t { kManaged, kDevice };

// The reaction to steps that are much slower because their memory does not fit the device.
enum class Thrashing : std::uint8_t {
  kWarn,  // one line
  kFail,  // an out-of-memory error of a later allocation
  kIgnore,
};

struct Configuration {
  bool enabled = false;                    // PYTORCH_ENABLE_UNIFIED_MEMORY
  std::string runtime = "auto";            // UVMALLOC_RUNTIME
  Policy policy = Policy::kAuto;           // UVMALLOC_POLICY
  Thrashing thrashing = Thrashing::kWarn;  // UVMALLOC_THRASHING
  // UVMALLOC_SPILL: a step may take so many times as long as with memory enough; at 1 nothing
  // spills, infinity is no limit. None: no limit, but for programs that search for the largest
  // batch.
  std::optional<double> most_slowdown;
  MoveMode move = MoveMode::kCopyOnWrite;   // UVMALLOC_MOVE
  std::optional<std::size_t> budget_bytes;  // UVMALLOC_BUDGET; none: from the machine
  // UVMALLOC_DEVICE_BUDGET; none: beyond a device's own memory the host's serves.
  std::optional<std::size_t> device_budget_bytes;
  std::optional<std::size_t> reserve_bytes;          // UVMALLOC_RESERVE; none: from the machine
  std::size_t host_threshold_bytes = 1u << 20;       // UVMALLOC_HOST_THRESHOLD
  ServeCuda serve_cuda = ServeCuda::kNo;             // UVMALLOC_CUDA
  PointerType pointer_type = PointerType::kManaged;  // UVMALLOC_POINTER_TYPE
  bool share = false;                                // UVMALLOC_SHARE
  // No variable: of the files through which programs agree on turns; empty: turn_folder().
  std::string share_folder;
  bool startup_line = true;                       // UVMALLOC_STARTUP_LINE
  std::string exclude;                            // UVMALLOC_EXCLUDE
  CpuTensors cpu_tensors = CpuTensors::kAuto;     // UVMALLOC_CPU
  HostBacking host_backing = HostBacking::kAuto;  // UVMALLOC_HOST_MEMORY
  std::optional<std::size_t> fork_limit_bytes;    // UVMALLOC_FORK_LIMIT; none: what the host has
  std::optional<std::size_t> span_bytes;  // UVMALLOC_SPAN_SIZE; none: from the device's abilities
  std::optional<std::size_t> thread_cache_bytes;  // UVMALLOC_THREAD_CACHE; none: from the budget
  // No variable: requests for large blocks that a pool serves before threads cache some; none:
  // policy::kLargeHitsRequired.
  std::optional<std::uint64_t> large_hits_required;
  LogLevel log = LogLevel::kWarning;  // UVMALLOC_LOG
  double decay_seconds = 0;           // UVMALLOC_DECAY: half-life; 0: never
  unsigned local_ranks = 1;      // LOCAL_WORLD_SIZE: processes that share this machine's memory
  std::string report_directory;  // UVMALLOC_REPORT_DIR; empty: no report file
  std::string report;            // UVMALLOC_REPORT: "stderr" prints it at exit
  std::string trace_file;        // UVMALLOC_TRACE; empty: no trace
  bool call_sites = false;       // UVMALLOC_CALL_SITES: in the trace
  // Whether the variables were read. Messages to a program that makes its own allocator name the
  // members instead.
  bool from_variables = false;
  std::string_view name_of(std::string_view variable, std::string_view member) const {
    return from_variables ? variable : member;
  }
};

struct SettingDescription {
  std::string_view name;
  std::string_view default_text;
  std::string_view accepted;
  std::string_view description;
};
const std::vector<SettingDescription>& known_settings();

struct EffectiveSetting {
  SettingDescription description;
  std::string value;
  bool from_environment = false;
};

struct ParsedConfiguration {
  Configuration configuration;
  std::vector<std::string> errors;          // one line each
  std::vector<EffectiveSetting> effective;  // in the order of known_settings()
};

// Value of a variable, or nullptr.
using VariableLookup = std::function<const char*(const char* name)>;

// Reads the settings through `lookup`. `all_names` are the variables that exist: those that start
// with UVMALLOC_ and are not known are errors too (a misspelt name would be silent otherwise).
ParsedConfiguration parse_configuration(const VariableLookup& lookup,
                                        const std::vector<std::string>& all_names);

// The same from this process's environment. If the process has rights that its caller lacks
// (AT_SECURE: setuid, setgid, capabilities of the program's file), nothing of it is used: the
// variables are the caller's. One error says so if there are variables of uvmalloc.
ParsedConfiguration parse_environment();
ParsedConfiguration parse_environment(bool has_raised_rights);

// "512MiB", "8G", "1.5GiB", "4096": bytes. K, M, G, T mean powers of 1024, with or without "iB" or
// "B".
std::optional<std::size_t> parse_size(std::string_view text);

}  // namespace uvm
