#include <uvmalloc/configuration.hpp>
#include "storage/pages.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include "allocator/base/number_text.hpp"
#include "allocator/group_settings.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

// More ranks would leave a process hardly any of the machine's memory.
constexpr unsigned kMostLocalRanks = 1024;

constexpr const char* kOnOff = "1, on, true, yes; 0, off, false, no";
constexpr const char* kSize = "a size such as 512MiB, 8G, 1.5GiB or bytes";
constexpr const char* kSizeOrAuto = "auto, or a size such as 512MiB, 8G, 1.5GiB or bytes";
constexpr const char* kPagesOrAuto = "auto, or a size of at least 2MiB, such as 512MiB or 8G";

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

bool is_off(std::string_view text) {
  static constexpr std::array<std::string_view, 5> kOff = {"", "0", "off", "false", "no"};
  return std::find(kOff.begin(), kOff.end(), lower(text)) != kOff.end();
}

// Excludes variables that only the build and the command line read, because they are not settings.
bool is_of_uvmalloc(std::string_view name) {
  return name.starts_with("UVMALLOC_") && name != "UVMALLOC_CACHE" && name != "UVMALLOC_LIB_DIR" &&
         name != "UVMALLOC_JEMALLOC_DIR";
}

std::optional<double> parse_finite(std::string_view text) {
  const auto number = read_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// The variable of one setting, while it is being read.
class Variable {
 public:
  // A variable that is set but empty counts as not set.
  explicit Variable(const char* text) : text_(text != nullptr && *text != '\0' ? text : nullptr) {}

  // Returns the variable's value as a string, or nullptr if the default applies.
  const char* text() const { return text_; }
  void refuse() { refused_ = std::exchange(text_, nullptr); }
  const char* refused() const { return refused_; }

 private:
  const char* text_;
  const char* refused_ = nullptr;
};

// Reads a variable into the member that it configures. Returns the resulting value as a string.
using Reader = std::function<std::string(Variable*, Configuration*)>;

Reader flag(bool Configuration::*member) {
  return [member](Variable* variable, Configuration* out) -> std::string {
    bool& value = out->*member;
    if (const char* text = variable->text()) {
      static constexpr std::array<std::string_view, 4> kOn = {"1", "on", "true", "yes"};
      if (is_off(text)) {
        value = false;
      } else if (std::find(kOn.begin(), kOn.end(), lower(text)) != kOn.end()) {
        value = true;
      } else {
        variable->refuse();
      }
    }
    return value ? "1" : "0";
  };
}

Reader word(std::string Configuration::*member) {
  return [member](Variable* variable, Configuration* out) {
    if (variable->text() != nullptr) out->*member = variable->text();
    return out->*member;
  };
}

Reader groups(std::string Configuration::*member) {
  return [member](Variable* variable, Configuration* out) {
    if (variable->text() != nullptr && !parse_groups(variable->text())) variable->refuse();
    if (variable->text() != nullptr) out->*member = variable->text();
    return out->*member;
  };
}

Reader file_name(std::string Configuration::*member) {
  return [member](Variable* variable, Configuration* out) {
    const char* text = variable->text();
    if (text != nullptr && !is_off(text)) out->*member = text;
    return out->*member;
  };
}

template <class Value, std::size_t kCount>
using Words = std::array<std::pair<std::string_view, Value>, kCount>;

// Several words may mean the same value; messages show the first of these words. `off` is the value
// that words such as "off" and "0" set, if the setting has one.
template <class Member, class Value, std::size_t kCount>
Reader choice(Member Configuration::*member, const Words<Value, kCount>& words,
              std::optional<Value> off = std::nullopt) {
  return [member, words, off](Variable* variable, Configuration* out) -> std::string {
    Member& value = out->*member;
    if (const char* text = variable->text()) {
      const auto found = std::find_if(words.begin(), words.end(),
                                      [&](const auto& each) { return each.first == lower(text); });
      if (off && is_off(text)) {
        value = *off;
      } else if (found != words.end()) {
        value = found->second;
      } else {
        variable->refuse();
      }
    }
    for (const auto& [name, named] : words) {
      if (named == value) return std::string(name);
    }
    return "";
  };
}

template <class Value, std::size_t kCount>
std::string names_of(const Words<Value, kCount>& words) {
  std::string names;
  for (const auto& [name, value] : words) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

Reader size(std::size_t Configuration::*member) {
  return [member](Variable* variable, Configuration* out) {
    if (const char* text = variable->text()) {
      if (const auto read = parse_size(text)) {
        out->*member = *read;
      } else {
        variable->refuse();
      }
    }
    return format_size(out->*member);
  };
}

Reader size_or_auto(std::optional<std::size_t> Configuration::*member, std::size_t least = 0) {
  return [member, least](Variable* variable, Configuration* out) {
    std::optional<std::size_t>& value = out->*member;
    const char* text = variable->text();
    if (text != nullptr && lower(text) != "auto") {
      const auto read = parse_size(text);
      if (read && *read >= least) {
        value = read;
      } else {
        variable->refuse();
      }
    }
    return value ? format_size(*value) : "auto";
  };
}

Reader seconds(double Configuration::*member) {
  return [member](Variable* variable, Configuration* out) {
    double& value = out->*member;
    if (const char* text = variable->text()) {
      const auto read = is_off(text) ? 0 : parse_finite(text);
      if (read && *read >= 0) {
        value = *read;
      } else {
        variable->refuse();
      }
    }
    return fmt::format("{}", value);
  };
}

Reader slowdown(std::optional<double> Configuration::*member) {
  return [member](Variable* variable, Configuration* out) -> std::string {
    std::optional<double>& value = out->*member;
    const char* text = variable->text();
    if (text != nullptr && lower(text) == "none") {
      value = std::numeric_limits<double>::infinity();
    } else if (text != nullptr && lower(text) != "auto") {
      std::string_view number(text);
      if (number.ends_with('x') || number.ends_with('X')) number.remove_suffix(1);
      const auto read = parse_finite(number);
      if (read && *read >= 1) {
        value = *read;
      } else {
        variable->refuse();
      }
    }
    if (!value) return "auto";
    return std::isfinite(*value) ? fmt::format("{}x", *value) : "none";
  };
}

constexpr Words<Thrashing, 3> kThrashing{
    {{"warn", Thrashing::kWarn}, {"fail", Thrashing::kFail}, {"off", Thrashing::kIgnore}}};
constexpr Words<MoveMode, 3> kMoves{
    {{"cow", MoveMode::kCopyOnWrite}, {"alias", MoveMode::kAlias}, {"copy", MoveMode::kCopy}}};
constexpr Words<ServeCuda, 6> kServeCuda{{{"1", ServeCuda::kYes},
                                          {"on", ServeCuda::kYes},
                                          {"true", ServeCuda::kYes},
                                          {"yes", ServeCuda::kYes},
                                          {"0", ServeCuda::kNo},
                                          {"auto", ServeCuda::kAuto}}};
constexpr Words<PointerType, 2> kPointerTypes{
    {{"managed", PointerType::kManaged}, {"device", PointerType::kDevice}}};
constexpr Words<CpuTensors, 2> kCpuTensors{
    {{"auto", CpuTensors::kAuto}, {"managed", CpuTensors::kManaged}}};
constexpr Words<HostBacking, 3> kHostBackings{{{"auto", HostBacking::kAuto},
                                               {"managed", HostBacking::kManaged},
                                               {"ordinary", HostBacking::kOrdinary}}};
constexpr Words<LogLevel, 5> kLogLevels{{{"off", LogLevel::kOff},
                                         {"error", LogLevel::kError},
                                         {"warning", LogLevel::kWarning},
                                         {"info", LogLevel::kInfo},
                                         {"debug", LogLevel::kDebug}}};
constexpr Words<std::string_view, 1> kReports{{{"stderr", "stderr"}}};

struct Setting {
  SettingDescription description;
  Reader read;
};

// The list is never destroyed, because a report may be written while the process exits.
const std::vector<Setting>& settings() {
  static const auto* const kSettings = new std::vector<Setting>{
      {{"PYTORCH_ENABLE_UNIFIED_MEMORY", "0", "1, on, true, yes; 0, off, false, no or empty",
        "switches uvmalloc on (RFC-0023)"},
       flag(&Configuration::enabled)},
      {{"UVMALLOC_RUNTIME", "auto",
        "auto, or the name of a runtime: cuda, hip, or one registered by a library",
        "which kind of device to use"},
       word(&Configuration::runtime)},
      {{"UVMALLOC_POLICY", "auto", names_of(kPolicies),
        "how memory is placed: by advice and prefetches, by page faults alone, or not at all "
        "(moves copy)"},
       choice(&Configuration::policy, kPolicies)},
      {{"UVMALLOC_THRASHING", "warn", names_of(kThrashing),
        "the reaction to steps that are much slower because their memory does not fit the device"},
       choice(&Configuration::thrashing, kThrashing)},
      {{"UVMALLOC_SPILL", "auto", "auto; 1x, 1.5x, 2x and so on; none",
        "how much slower steps may become before allocation raises out-of-memory; auto: no limit, "
        "except in a search for the largest batch"},
       slowdown(&Configuration::most_slowdown)},
      {{"UVMALLOC_SHARE", "0", kOnOff,
        "takes turns on a device with other programs that share it, if all need more than it has"},
       flag(&Configuration::share)},
      {{"UVMALLOC_MOVE", "cow", names_of(kMoves),
        "a device move shares the bytes until one side is written, or copies at once"},
       choice(&Configuration::move, kMoves)},
      {{"UVMALLOC_BUDGET", "auto", kPagesOrAuto,
        "hard limit for all memory of this process; beyond it allocation raises out-of-memory"},
       size_or_auto(&Configuration::budget_bytes, kPageBytes)},
      {{"UVMALLOC_DEVICE_BUDGET", "auto", kPagesOrAuto,
        "hard limit for memory of each device; beyond it allocation raises out-of-memory"},
       size_or_auto(&Configuration::device_budget_bytes, kPageBytes)},
      {{"UVMALLOC_RESERVE", "auto", kSizeOrAuto,
        "memory of each device and of the host that the automatic budgets leave free"},
       size_or_auto(&Configuration::reserve_bytes)},
      {{"UVMALLOC_HOST_THRESHOLD", "1 MiB", kSize,
        "CPU tensors from this size on are managed, and from 1 MiB on their moves need no second "
        "copy; smaller ones come from malloc"},
       size(&Configuration::host_threshold_bytes)},
      {{"UVMALLOC_CUDA", "0", "1, on, true, yes; 0, off, false, no or empty; auto",
        "serves the program's own calls of cudaMalloc and similar functions if the library is "
        "preloaded; auto: not in processes with the PyTorch plugin"},
       choice(&Configuration::serve_cuda, kServeCuda, std::optional(ServeCuda::kNo))},
      {{"UVMALLOC_EXCLUDE", "", "<SIZE, >SIZE, libNAME, libNAME.so+0xOFFSET; none as the first",
        "calls that are forwarded to CUDA, separated by commas"},
       word(&Configuration::exclude)},
      {{"UVMALLOC_VIRTUAL_MEMORY", "1", kOnOff,
        "also serves the program's virtual memory management (cuMemCreate, cuMemMap and similar "
        "functions) if its allocation calls are served"},
       flag(&Configuration::virtual_memory)},
      {{"UVMALLOC_POINTER_TYPE", "managed", names_of(kPointerTypes),
        "the memory type that CUDA's pointer attributes report for a served cudaMalloc"},
       choice(&Configuration::pointer_type, kPointerTypes)},
      {{"UVMALLOC_STARTUP_LINE", "1", kOnOff,
        "one line on stderr when the first allocation call of CUDA is served"},
       flag(&Configuration::startup_line)},
      {{"UVMALLOC_CPU", "auto", names_of(kCpuTensors),
        "when CPU tensors begin to be managed: once the program has initialised CUDA, or at once, "
        "which initialises it"},
       choice(&Configuration::cpu_tensors, kCpuTensors)},
      {{"UVMALLOC_HOST_MEMORY", "auto", names_of(kHostBackings),
        "the memory of CPU tensors: managed, or ordinary if every device reaches it; forked "
        "children share ordinary memory"},
       choice(&Configuration::host_backing, kHostBackings)},
      {{"UVMALLOC_FORK_LIMIT", "auto", kSizeOrAuto,
        "most host memory that is copied for a forked child; 0: never"},
       size_or_auto(&Configuration::fork_limit_bytes)},
      {{"UVMALLOC_SPAN_SIZE", "auto", kPagesOrAuto, "virtual memory to reserve at a time"},
       size_or_auto(&Configuration::span_bytes, kPageBytes)},
      {{"UVMALLOC_THREAD_CACHE", "auto", kSizeOrAuto,
        "freed memory of a stream that one thread may keep; 0: nothing"},
       size_or_auto(&Configuration::thread_cache_bytes)},
      {{"UVMALLOC_DECAY", "0", "seconds, such as 30 or 2.5; 0 or off: never",
        "half-life of idle cached memory, which goes back to the driver"},
       seconds(&Configuration::decay_seconds)},
      {{"UVMALLOC_GROUPS", "", kGroupsAccepted,
        "settings of groups: who makes room first, what stays, and when idle groups sleep "
        "(docs/reference/groups.md)"},
       groups(&Configuration::groups)},
      {{"UVMALLOC_LOG", "warning", names_of(kLogLevels), "which messages are written to stderr"},
       choice(&Configuration::log, kLogLevels)},
      {{"UVMALLOC_REPORT_DIR", "", "a folder, or off",
        "where report.<pid>.json is written at exit"},
       file_name(&Configuration::report_directory)},
      {{"UVMALLOC_REPORT", "", "stderr, or off", "prints a short report at exit"},
       choice(&Configuration::report, kReports, std::optional(std::string_view()))},
      {{"UVMALLOC_TRACE", "", "a file name, in which %p is the process number, or off",
        "every event of the allocator is written there (docs/reference/trace.md)"},
       file_name(&Configuration::trace_file)},
      {{"UVMALLOC_CALL_SITES", "0", kOnOff, "the trace names the code that made each allocation"},
       flag(&Configuration::call_sites)},
      {{"UVMALLOC_NVTX", "0", kOnOff,
        "profilers show prefetches, evictions, plans, sleep and wake as NVTX ranges"},
       flag(&Configuration::nvtx)},
  };
  return *kSettings;
}

void read_settings(const VariableLookup& lookup, ParsedConfiguration* out) {
  for (const auto& [setting, read] : settings()) {
    Variable variable(lookup(std::string(setting.name).c_str()));
    std::string value = read(&variable, &out->configuration);
    out->effective.push_back({setting, std::move(value), variable.text() != nullptr});
    if (variable.refused() == nullptr) continue;
    out->errors.push_back(
        fmt::format("{}='{}' is not understood; accepted: {}; the default, {}, is used",
                    setting.name, variable.refused(), setting.accepted,
                    setting.default_text.empty() ? "off" : setting.default_text));
  }
}

// LOCAL_WORLD_SIZE is not a setting of uvmalloc: launchers such as torchrun set it.
void read_local_ranks(const VariableLookup& lookup, ParsedConfiguration* out) {
  const char* text = lookup("LOCAL_WORLD_SIZE");
  if (text == nullptr || *text == '\0') return;
  const auto ranks = read_number<unsigned>(text);
  if (ranks && *ranks > 0 && *ranks <= kMostLocalRanks) {
    out->configuration.local_ranks = *ranks;
    return;
  }
  out->errors.push_back(fmt::format(
      "LOCAL_WORLD_SIZE='{}' is not understood; accepted: a number of processes from 1 to {}; "
      "the default, 1, is used",
      text, kMostLocalRanks));
}

void refuse_unknown(const std::vector<std::string>& names, ParsedConfiguration* out) {
  for (const std::string& name : names) {
    if (!is_of_uvmalloc(name)) continue;
    const bool is_known =
        std::any_of(settings().begin(), settings().end(),
                    [&](const Setting& setting) { return setting.description.name == name; });
    if (is_known) continue;
    out->errors.push_back(
        fmt::format("{} is not a setting of uvmalloc; see docs/settings.md", name));
  }
}

}  // namespace

const std::vector<SettingDescription>& known_settings() {
  static const auto* const kKnown = [] {
    auto known = std::make_unique<std::vector<SettingDescription>>();
    for (const Setting& setting : settings()) known->push_back(setting.description);
    return known.release();
  }();
  return *kKnown;
}

ParsedConfiguration parse_configuration(const VariableLookup& lookup,
                                        const std::vector<std::string>& all_names) {
  ParsedConfiguration out;
  out.configuration.from_variables = true;
  read_settings(lookup, &out);
  read_local_ranks(lookup, &out);
  refuse_unknown(all_names, &out);
  return out;
}

ParsedConfiguration parse_environment() {
  return parse_environment(getauxval(AT_SECURE) != 0);
}

ParsedConfiguration parse_environment(bool has_raised_rights) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  if (!has_raised_rights) {
    return parse_configuration([](const char* name) { return secure_getenv(name); }, names);
  }
  ParsedConfiguration defaults = parse_configuration([](const char*) { return nullptr; }, {});
  if (std::any_of(names.begin(), names.end(), is_of_uvmalloc)) {
    defaults.errors.emplace_back(
        "this program runs with raised rights: variables of uvmalloc are not used, all settings "
        "have their defaults");
  }
  return defaults;
}

std::optional<std::size_t> parse_size(std::string_view text) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string suffix =
      lower(std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end)));
  if (!suffix.empty() && suffix.front() == ' ') suffix.erase(0, 1);
  if (suffix.ends_with("ib")) {
    suffix.resize(suffix.size() - 2);
    if (suffix.empty()) return std::nullopt;
  } else if (suffix.ends_with("b")) {
    suffix.resize(suffix.size() - 1);
  }
  static constexpr std::string_view kUnits = "kmgt";
  int power = 0;
  if (!suffix.empty()) {
    std::size_t unit = kUnits.find(suffix);
    if (suffix.size() != 1 || unit == std::string_view::npos) return std::nullopt;
    power = static_cast<int>(unit) + 1;
  }
  double bytes = std::ldexp(number, 10 * power);
  if (bytes >= std::ldexp(1.0, 63)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

}  // namespace uvm
