// The settings: parsed once from environment variables, or set by a program. scripts/lists.py
// writes known_settings() into the table in docs/settings.md. If a value is not accepted, the
// default applies, and an error names the variable, the value and the accepted values.
//
// Plain values and pure functions, which any thread may use.
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
  kAlias,        // a device move shares the bytes for good: both sides see all writes
  kCopy,         // a device move copies, as without uvmalloc
};

// Which memory host blocks use.
enum class HostBacking : unsigned char {
  kAuto,      // ordinary memory if every device uses the host's page tables, else managed memory
  kManaged,   // managed memory of the driver
  kOrdinary,  // memory of the kernel; a forked child shares it copy on write
};

// When CPU tensors become managed.
enum class CpuTensors : unsigned char {
  kAuto,     // once the program has initialised the driver and uses a device
  kManaged,  // at once, which may initialise the driver
};

// Whether the preloaded library serves the program's own CUDA allocation calls. kAuto: yes, unless
// the process contains PyTorch and a plugin serves PyTorch or is switched off.
enum class ServeCuda : std::uint8_t { kNo, kYes, kAuto };

// The memory type that cudaPointerGetAttributes reports for pointers of a served cudaMalloc.
enum class PointerType : std::uint8_t { kManaged, kDevice };

// What happens if steps are much slower because their memory does not fit the device.
enum class Thrashing : std::uint8_t {
  kWarn,  // logs one line
  kFail,  // a later allocation throws an out-of-memory error
  kIgnore,
};

struct Configuration {
  bool enabled = false;                    // PYTORCH_ENABLE_UNIFIED_MEMORY
  std::string runtime = "auto";            // UVMALLOC_RUNTIME
  Policy policy = Policy::kAuto;           // UVMALLOC_POLICY
  Thrashing thrashing = Thrashing::kWarn;  // UVMALLOC_THRASHING
  // UVMALLOC_SPILL: the longest time of a step, as a multiple of its time with enough memory. 1:
  // nothing spills; infinity: no limit. Unset: no limit, except in a search for the largest batch.
  std::optional<double> most_slowdown;
  MoveMode move = MoveMode::kCopyOnWrite;   // UVMALLOC_MOVE
  std::optional<std::size_t> budget_bytes;  // UVMALLOC_BUDGET; unset: from the machine
  // UVMALLOC_DEVICE_BUDGET. Unset: device memory may spill to the host.
  std::optional<std::size_t> device_budget_bytes;
  std::optional<std::size_t> reserve_bytes;          // UVMALLOC_RESERVE; unset: from the machine
  std::size_t host_threshold_bytes = 1u << 20;       // UVMALLOC_HOST_THRESHOLD
  ServeCuda serve_cuda = ServeCuda::kNo;             // UVMALLOC_CUDA
  bool virtual_memory = true;                        // UVMALLOC_VIRTUAL_MEMORY
  PointerType pointer_type = PointerType::kManaged;  // UVMALLOC_POINTER_TYPE
  bool share = false;                                // UVMALLOC_SHARE
  // The folder of the files through which programs agree on turns; empty: turn_folder().
  std::string share_folder;
  bool startup_line = true;  // UVMALLOC_STARTUP_LINE
  std::string exclude;       // UVMALLOC_EXCLUDE
  std::string groups;  // UVMALLOC_GROUPS: settings of groups by name (allocator/group_settings.hpp)
  CpuTensors cpu_tensors = CpuTensors::kAuto;     // UVMALLOC_CPU
  HostBacking host_backing = HostBacking::kAuto;  // UVMALLOC_HOST_MEMORY
  std::optional<std::size_t> fork_limit_bytes;    // UVMALLOC_FORK_LIMIT; unset: available memory
  std::optional<std::size_t> span_bytes;          // UVMALLOC_SPAN_SIZE; unset: by the device
  std::optional<std::size_t> thread_cache_bytes;  // UVMALLOC_THREAD_CACHE; unset: from the budget
  // After this many requests for large blocks from a pool, threads cache some large blocks. Unset:
  // policy::kLargeHitsRequired. Has no variable.
  std::optional<std::uint64_t> large_hits_required;
  LogLevel log = LogLevel::kWarning;  // UVMALLOC_LOG
  double decay_seconds = 0;           // UVMALLOC_DECAY: half-life; 0: never
  unsigned local_ranks = 1;      // LOCAL_WORLD_SIZE: processes that share this machine's memory
  std::string report_directory;  // UVMALLOC_REPORT_DIR; empty: no report file
  std::string report;            // UVMALLOC_REPORT: "stderr" prints it at exit
  std::string trace_file;        // UVMALLOC_TRACE; empty: no trace
  bool call_sites = false;       // UVMALLOC_CALL_SITES: traces contain call sites
  bool nvtx = false;             // UVMALLOC_NVTX: only of the process's allocator
  // Whether the settings come from environment variables. If not, messages name the members
  // instead.
  bool from_variables = false;
  std::string_view name_of(std::string_view variable, std::string_view member) const {
    return from_variables ? variable : member;
  }
};

struct SettingDescription {
  std::string_view name;
  std::string_view default_text;
  std::string accepted;
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

// Returns the value of a variable, or nullptr.
using VariableLookup = std::function<const char*(const char* name)>;

// Reads the settings through `lookup`. `all_names` lists all variables that exist: an unknown name
// that starts with UVMALLOC_ is an error, so that misspelt names are noticed.
ParsedConfiguration parse_configuration(const VariableLookup& lookup,
                                        const std::vector<std::string>& all_names);

// Same as parse_configuration(), from this process's environment. If the process has more rights
// than its caller (AT_SECURE: setuid, setgid, capabilities of its file), all settings keep their
// defaults, because the caller controls the variables. Then, if any variable of uvmalloc is set,
// one error says that it was ignored.
ParsedConfiguration parse_environment();
ParsedConfiguration parse_environment(bool has_raised_rights);

// Parses a string such as "512MiB", "8G", "1.5GiB" or "4096" into bytes. Returns nullopt for any
// other string. K, M, G, T mean powers of 1024, with or without "iB" or "B".
std::optional<std::size_t> parse_size(std::string_view text);

}  // namespace uvm
