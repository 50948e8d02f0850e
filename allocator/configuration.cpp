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
#include <cstring>
#include <limits>
#include <string>

#include <fmt/format.h>
#include "runtime/log.hpp"

namespace uvm {
namespace {

// With more ranks a process would get hardly any of the machine's memory.
constexpr unsigned kMostLocalRanks = 1024;

constexpr std::string_view kSize = "a size such as 512MiB, 8G, 1.5GiB or bytes";
constexpr std::string_view kSizeOrAuto = "auto, or a size such as 512MiB, 8G, 1.5GiB or bytes";
constexpr std::string_view kPagesOrAuto = "auto, or a size of at least 2MiB, such as 512MiB or 8G";

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

// Variables of the build and of the command line are no settings of the library.
bool is_of_uvmalloc(std::string_view name) {
  return name.starts_with("UVMALLOC_") && name != "UVMALLOC_CACHE" && name != "UVMALLOC_LIB_DIR" &&
         name != "UVMALLOC_JEMALLOC_DIR";
}

// Parses a finite number, independent of the locale.
std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

template <class Enum>
using Choices = std::vector<std::pair<std::string_view, Enum>>;

// Reads the settings in the order of known_settings(), and collects their errors.
class Reader {
 public:
  Reader(const VariableLookup& lookup, ParsedConfiguration* out) : lookup_(lookup), out_(*out) {}

  void flag(bool* value) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr) {
      static constexpr std::array<std::string_view, 4> kOn = {"1", "on", "true", "yes"};
      if (is_off(text)) {
        *value = false;
      } else if (std::find(kOn.begin(), kOn.end(), lower(text)) != kOn.end()) {
        *value = true;
      } else {
        text = refuse(setting, text);
      }
    }
    keep(setting, *value ? "1" : "0", text);
  }

  void word(std::string* value) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr) *value = text;
    keep(setting, *value, text);
  }

  void file_name(std::string* value) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr && !is_off(text)) *value = text;
    keep(setting, *value, text);
  }

  // `off`: the value for the words that mean off, if the setting has one.
  template <class Enum>
  void choice(Enum* value, const Choices<Enum>& choices, const Enum* off = nullptr) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr && off != nullptr && is_off(text)) {
      *value = *off;
    } else if (text != nullptr) {
      auto found = std::find_if(choices.begin(), choices.end(),
                                [&](const auto& choice) { return choice.first == lower(text); });
      if (found != choices.end()) {
        *value = found->second;
      } else {
        text = refuse(setting, text);
      }
    }
    std::string_view name = setting.default_text;
    for (const auto& choice : choices) {
      if (choice.second == *value) name = choice.first;
    }
    keep(setting, std::string(name), text);
  }

  void size(std::size_t* value, std::size_t least = 0) {
    std::optional<std::size_t> read;
    const auto& setting = next();
    const char* text = read_size(setting, least, false, &read);
    if (read) *value = *read;
    keep(setting, format_size(*value), text);
  }

  void seconds(double* value) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr && is_off(text)) {
      *value = 0;
    } else if (text != nullptr) {
      const auto read = parse_number(text);
      if (read && *read >= 0) {
        *value = *read;
      } else {
        text = refuse(setting, text);
      }
    }
    keep(setting, fmt::format("{}", *value), text);
  }

  void slowdown(std::optional<double>* value) {
    const auto& setting = next();
    const char* text = given(setting);
    if (text != nullptr && lower(text) == "none") {
      *value = std::numeric_limits<double>::infinity();
    } else if (text != nullptr && lower(text) != "auto") {
      std::string_view number(text);
      if (number.ends_with('x') || number.ends_with('X')) number.remove_suffix(1);
      const auto read = parse_number(number);
      if (read && *read >= 1) {
        *value = *read;
      } else {
        text = refuse(setting, text);
      }
    }
    keep(setting,
         !*value                  ? "auto"
         : std::isfinite(**value) ? fmt::format("{}x", **value)
                                  : "none",
         text);
  }

  void size_or_auto(std::optional<std::size_t>* value, std::size_t least = 0) {
    const auto& setting = next();
    const char* text = read_size(setting, least, true, value);
    keep(setting, *value ? format_size(**value) : "auto", text);
  }

 private:
  const SettingDescription& next() { return known_settings().at(index_++); }

  // The text of the variable; an empty one means the default.
  const char* given(const SettingDescription& setting) {
    const char* text = lookup_(std::string(setting.name).c_str());
    return text != nullptr && *text != '\0' ? text : nullptr;
  }

  const char* read_size(const SettingDescription& setting, std::size_t least, bool automatic,
                        std::optional<std::size_t>* out) {
    const char* text = given(setting);
    if (text == nullptr) return nullptr;
    if (automatic && lower(text) == "auto") return text;
    auto read = parse_size(text);
    if (!read || *read < least) return refuse(setting, text);
    *out = read;
    return text;
  }

  const char* refuse(const SettingDescription& setting, const char* text) {
    out_.errors.push_back(fmt::format(
        "{}='{}' is not understood; accepted: {}; the default, {}, is used", setting.name, text,
        setting.accepted, setting.default_text.empty() ? "off" : setting.default_text));
    return nullptr;
  }

  void keep(const SettingDescription& setting, std::string value, const char* text) {
    out_.effective.push_back({setting, std::move(value), text != nullptr});
  }

  const VariableLookup& lookup_;
  ParsedConfiguration& out_;
  std::size_t index_ = 0;
};

}  // namespace

const std::vector<SettingDescription>& known_settings() {
  static const std::vector<SettingDescription> kSettings = {
      {"PYTORCH_ENABLE_UNIFIED_MEMORY", "0", "1, on, true, yes; 0, off, false, no or empty",
       "switches uvmalloc on (RFC-0023)"},
      {"UVMALLOC_RUNTIME", "auto",
       "auto, or the name of a runtime: cuda, hip, or one registered by a library",
       "which kind of device to use"},
      {"UVMALLOC_POLICY", "auto", "auto, planned, lru, driver, off",
       "who decides on placement: uvmalloc, the driver's page faults alone, or nobody (moves "
       "copy)"},
      {"UVMALLOC_THRASHING", "warn", "warn, fail, off",
       "the reaction to steps that are much slower because their memory does not fit the device"},
      {"UVMALLOC_SPILL", "auto", "auto; 1x, 1.5x, 2x and so on; none",
       "how much slower steps may become before allocation raises out-of-memory; auto: no limit, "
       "but in a search for the largest batch"},
      {"UVMALLOC_SHARE", "0", "1, on, true, yes; 0, off, false, no",
       "takes turns on a device with other programs that share it, when all need more than it has"},
      {"UVMALLOC_MOVE", "cow", "cow, alias, copy",
       "a device move shares the bytes until one side is written, or copies at once"},
      {"UVMALLOC_BUDGET", "auto", kPagesOrAuto,
       "hard limit for all memory of this process; beyond it allocation raises out-of-memory"},
      {"UVMALLOC_DEVICE_BUDGET", "auto", kPagesOrAuto,
       "hard limit for what is asked of each device; beyond it allocation raises out-of-memory"},
      {"UVMALLOC_RESERVE", "auto", kSizeOrAuto,
       "kept free of the memory that the automatic budgets count"},
      {"UVMALLOC_HOST_THRESHOLD", "1 MiB", kSize,
       "CPU tensors from this size on are managed, and move without a copy from 1 MiB on; smaller "
       "ones come from malloc"},
      {"UVMALLOC_CUDA", "0", "1, on, true, yes; 0, off, false, no or empty; auto",
       "serves the program's own calls of cudaMalloc and its like, where the library is preloaded; "
       "auto: in processes without PyTorch"},
      {"UVMALLOC_EXCLUDE", "", "<SIZE, >SIZE, libNAME, libNAME.so+0xOFFSET; none as the first",
       "calls that are left to CUDA, separated by commas"},
      {"UVMALLOC_POINTER_TYPE", "managed", "managed, device",
       "what CUDA's pointer attributes call the memory of a served cudaMalloc"},
      {"UVMALLOC_STARTUP_LINE", "1", "1, on, true, yes; 0, off, false, no",
       "one line on stderr when the first allocation call of CUDA is served"},
      {"UVMALLOC_CPU", "auto", "auto, managed",
       "when CPU tensors begin to be managed: once the program has initialised CUDA, or at once, "
       "which initialises it"},
      {"UVMALLOC_HOST_MEMORY", "auto", "auto, managed, ordinary",
       "what CPU tensors are in: managed memory, or ordinary memory where every device reaches it, "
       "which forked children share"},
      {"UVMALLOC_FORK_LIMIT", "auto", kSizeOrAuto,
       "host memory that is copied for a forked child, at most; 0: never"},
      {"UVMALLOC_SPAN_SIZE", "auto", kPagesOrAuto,
       "virtual memory asked from the driver at a time"},
      {"UVMALLOC_THREAD_CACHE", "auto", kSizeOrAuto,
       "what a thread may keep of a stream's freed memory for itself; 0: nothing"},
      {"UVMALLOC_DECAY", "0", "seconds, such as 30 or 2.5; 0 or off: never",
       "half-life of idle cached memory, before it goes back by itself"},
      {"UVMALLOC_LOG", "warning", "off, error, warning, info, debug", "what is written to stderr"},
      {"UVMALLOC_REPORT_DIR", "", "a folder, or off", "where report.<pid>.json is written at exit"},
      {"UVMALLOC_REPORT", "", "stderr, or off", "prints a short report at exit"},
      {"UVMALLOC_TRACE", "", "a file name, in which %p is the process number, or off",
       "every event of the allocator is written there (docs/trace.md)"},
      {"UVMALLOC_CALL_SITES", "0", "1, on, true, yes; 0, off, false, no",
       "the trace names the place in the program that made each allocation"},
  };
  return kSettings;
}

ParsedConfiguration parse_configuration(const VariableLookup& lookup,
                                        const std::vector<std::string>& all_names) {
  ParsedConfiguration out;
  Configuration& configuration = out.configuration;
  configuration.from_variables = true;
  Reader read(lookup, &out);
  read.flag(&configuration.enabled);
  read.word(&configuration.runtime);
  read.choice(&configuration.policy, Choices<Policy>(kPolicies.begin(), kPolicies.end()));
  read.choice(&configuration.thrashing, Choices<Thrashing>{{"warn", Thrashing::kWarn},
                                                           {"fail", Thrashing::kFail},
                                                           {"off", Thrashing::kIgnore}});
  read.slowdown(&configuration.most_slowdown);
  read.flag(&configuration.share);
  read.choice(&configuration.move, Choices<MoveMode>{{"cow", MoveMode::kCopyOnWrite},
                                                     {"alias", MoveMode::kAlias},
                                                     {"copy", MoveMode::kCopy}});
  read.size_or_auto(&configuration.budget_bytes, kPageBytes);
  read.size_or_auto(&configuration.device_budget_bytes, kPageBytes);
  read.size_or_auto(&configuration.reserve_bytes);
  read.size(&configuration.host_threshold_bytes);
  const ServeCuda serve_none = ServeCuda::kNo;
  read.choice(&configuration.serve_cuda,
              Choices<ServeCuda>{{"on", ServeCuda::kYes},
                                 {"true", ServeCuda::kYes},
                                 {"yes", ServeCuda::kYes},
                                 {"1", ServeCuda::kYes},
                                 {"auto", ServeCuda::kAuto},
                                 {"0", ServeCuda::kNo}},
              &serve_none);
  read.word(&configuration.exclude);
  read.choice(&configuration.pointer_type, Choices<PointerType>{{"managed", PointerType::kManaged},
                                                                {"device", PointerType::kDevice}});
  read.flag(&configuration.startup_line);
  read.choice(&configuration.cpu_tensors,
              Choices<CpuTensors>{{"auto", CpuTensors::kAuto}, {"managed", CpuTensors::kManaged}});
  read.choice(&configuration.host_backing,
              Choices<HostBacking>{{"auto", HostBacking::kAuto},
                                   {"managed", HostBacking::kManaged},
                                   {"ordinary", HostBacking::kOrdinary}});
  read.size_or_auto(&configuration.fork_limit_bytes);
  read.size_or_auto(&configuration.span_bytes, kPageBytes);
  read.size_or_auto(&configuration.thread_cache_bytes);
  read.seconds(&configuration.decay_seconds);
  read.choice(&configuration.log, Choices<LogLevel>{{"off", LogLevel::kOff},
                                                    {"error", LogLevel::kError},
                                                    {"warning", LogLevel::kWarning},
                                                    {"info", LogLevel::kInfo},
                                                    {"debug", LogLevel::kDebug}});
  read.file_name(&configuration.report_directory);
  const std::string no_report;
  read.choice(&configuration.report, Choices<std::string>{{"stderr", "stderr"}}, &no_report);
  read.file_name(&configuration.trace_file);
  read.flag(&configuration.call_sites);
  // Not a setting of uvmalloc: launchers such as torchrun set it.
  if (const char* ranks = lookup("LOCAL_WORLD_SIZE"); ranks != nullptr && *ranks != '\0') {
    unsigned read_ranks = 0;
    const char* end = ranks + std::strlen(ranks);
    if (auto result = std::from_chars(ranks, end, read_ranks);
        result.ec == std::errc() && result.ptr == end && read_ranks > 0 &&
        read_ranks <= kMostLocalRanks) {
      configuration.local_ranks = read_ranks;
    } else {
      out.errors.push_back(fmt::format(
          "LOCAL_WORLD_SIZE='{}' is not understood; accepted: a number of processes from 1 to {}; "
          "the default, 1, is used",
          ranks, kMostLocalRanks));
    }
  }
  for (const std::string& name : all_names) {
    if (!is_of_uvmalloc(name)) continue;
    bool known = std::any_of(known_settings().begin(), known_settings().end(),
                             [&](const auto& setting) { return setting.name == name; });
    if (!known) {
      out.errors.push_back(
          fmt::format("{} is not a setting of uvmalloc; see docs/configuration.md", name));
    }
  }
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
