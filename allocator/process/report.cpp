// The report on a process and the doctor's findings, as JSON and as text.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <uvmalloc/allocator/base/machine_memory.hpp>
#include <uvmalloc/allocator/process/process_allocator.hpp>
#include <uvmalloc/allocator/spans/host_backing.hpp>
#include <uvmalloc/allocator/spans/machine_budget.hpp>
#include <uvmalloc/runtime/registry.hpp>

namespace uvm {
namespace {

using Json = nlohmann::ordered_json;

const auto kProcessStart = std::chrono::steady_clock::now();

const auto kProcessStartTime = std::chrono::system_clock::now();

std::function<NativeAllocations()>& native_allocations() {
  static auto* const source = new std::function<NativeAllocations()>;
  return *source;
}

std::string text_of_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string program_name() {
  constexpr std::size_t kMostBytes = 2048;
  std::string text = text_of_file("/proc/self/cmdline");
  text.resize(std::min(text.size(), kMostBytes));
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// The start of the process in the kernel's ticks. With the process number it names the process
// uniquely. 0: not known.
std::uint64_t process_start_ticks() {
  constexpr int kField = 22;          // of proc(5)
  constexpr int kFieldAfterName = 3;  // the name before it may hold blanks
  const std::string text = text_of_file("/proc/self/stat");
  std::size_t at = text.rfind(')');
  for (int field = kFieldAfterName; at != std::string::npos && field <= kField; ++field) {
    at = text.find(' ', at + 1);
  }
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// The rank of the process that its launcher has set; null: it has set none.
Json rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* text = std::getenv(name); text != nullptr && *text != '\0') return text;
  }
  return nullptr;
}

// Calls `add` with the name and the value of each fact about the process.
template <class Add>
void describe_process(const Add& add) {
  const std::chrono::duration<double> since_epoch = kProcessStartTime.time_since_epoch();
  add("version", Json(version()));
  add("program", Json(program_name()));
  add("pid", Json(getpid()));
  add("parent", Json(getppid()));
  add("rank", rank());
  add("start_time", Json(since_epoch.count()));
  add("start_ticks", Json(process_start_ticks()));
}

Json process_json() {
  Json out = Json::object();
  describe_process([&](const char* name, const Json& value) { out[name] = value; });
  return out;
}

Json facades_json(const Figures& figures) {
  Json out = Json::object();
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    const Figures::OfFacade& of = figures.facades[facade];
    out[to_string(static_cast<Facade>(facade))] = {{"allocations", of.allocations},
                                                   {"allocated_bytes", of.allocated_bytes},
                                                   {"live_bytes", of.live_bytes},
                                                   {"peak_bytes", of.peak_bytes},
                                                   {"cache_hits", of.cache_hits}};
  }
  return out;
}

Json copies_json(const MoveStatistics& moves) {
  MoveStatistics::Copies all;
  Json by_reason = Json::object();
  for (std::size_t reason = 0; reason < kCopyReasons; ++reason) {
    const MoveStatistics::Copies& copies = moves.copies[reason];
    if (copies.count == 0) continue;
    by_reason[to_string(static_cast<CopyReason>(reason))] = {
        {"count", copies.count},
        {"bytes", copies.bytes},
        {"bytes_at_or_above_threshold", copies.bytes_at_or_above_threshold}};
    all.count += copies.count;
    all.bytes += copies.bytes;
    all.bytes_at_or_above_threshold += copies.bytes_at_or_above_threshold;
  }
  return {{"count", all.count},
          {"bytes", all.bytes},
          {"bytes_at_or_above_threshold", all.bytes_at_or_above_threshold},
          {"by_reason", by_reason}};
}

Json hints_json(const Figures::OfHints& kind) {
  Json skipped = Json::object();
  for (std::size_t reason = 0; reason < kSkipReasons; ++reason) {
    if (const std::uint64_t count = kind.skipped[reason]; count != 0) {
      skipped[to_string(static_cast<SkipReason>(reason))] = count;
    }
  }
  return {
      {"sent", kind.sent}, {"bytes", kind.bytes}, {"skipped", skipped}, {"failed", kind.failed}};
}

void add_figures(const Figures& figures, Json* out) {
  const Totals& totals = figures.totals;
  const MoveStatistics& moves = totals.moves;
  (*out)["peak_bytes"] = figures.peak_bytes;
  (*out)["peak_touched_bytes"] = totals.touched_bytes.peak;
  (*out)["peak_span_bytes"] = totals.span_bytes.peak;
  (*out)["facades"] = facades_json(figures);
  (*out)["host_unmanaged"] = {{"allocations", figures.unmanaged_host_allocations},
                              {"allocated_bytes", figures.unmanaged_host_bytes}};
  (*out)["moves"] = {{"total", moves.total()},
                     {"host_to_device", moves.host_to_device},
                     {"device_to_host", moves.device_to_host},
                     {"device_to_device", moves.device_to_device},
                     {"bytes", moves.bytes}};
  (*out)["copies_by_moves"] = copies_json(moves);
  (*out)["conversions"] = {{"count", totals.conversions.count},
                           {"bytes", totals.conversions.bytes}};
  (*out)["materializations"] = {{"copies", totals.materializations.copies},
                                {"bytes", totals.materializations.bytes},
                                {"steals", totals.materializations.steals}};
  (*out)["forks"] = {{"count", totals.forks.forks},
                     {"copied_bytes", totals.forks.copied_bytes},
                     {"shared_bytes", totals.forks.shared_bytes},
                     {"without_copy", totals.forks.without_copy},
                     {"seconds", std::chrono::duration<double>(totals.forks.time).count()}};
  (*out)["prefetches"] = hints_json(figures.hints[static_cast<std::size_t>(HintKind::kPrefetch)]);
  (*out)["advice"] = hints_json(figures.hints[static_cast<std::size_t>(HintKind::kAdvise)]);
  (*out)["fences"] = totals.fences;
  (*out)["recalls"] = totals.recalls;
  (*out)["pressure_rounds"] = totals.pressure_rounds;
  (*out)["out_of_memory"] = totals.out_of_memory;
  (*out)["driver_calls"] = figures.calls;
  (*out)["threads_left_out"] = figures.threads_left_out;
}

// Without a framework no allocators are replaced, so there is nothing to count.
Json native_json() {
  if (!native_allocations()) return nullptr;
  const NativeAllocations made = native_allocations()();
  return {{"device", made.device}, {"pinned", made.pinned}, {"host", made.host}};
}

Json report() {
  Json out;
  CachingManagedAllocator* allocator = process_allocator();
  if (allocator == nullptr) {
    out = process_json();
    out["active"] = false;
    return out;
  }
  const Figures figures = allocator->figures();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - kProcessStart;
  out = Json::parse(figures.about, nullptr, false);
  if (!out.is_object()) out = process_json();
  out["wall_seconds"] = wall.count();
  add_figures(figures, &out);
  out["budget_bytes"] = allocator->budget_bytes();  // conversions raise it
  out["threads_left_out"] = 0;                      // only the file lacks them
  out["native_allocations"] = native_json();
  return out;
}

Json capabilities_json(const DeviceCapabilities& can) {
  return {{"managed_memory", can.managed_memory},
          {"concurrent_managed_access", can.concurrent_managed_access},
          {"pageable_memory_access", can.pageable_memory_access},
          {"host_page_tables", can.host_page_tables},
          {"direct_host_access", can.direct_host_access},
          {"integrated", can.integrated},
          {"memory_is_host_node", can.memory_is_host_node},
          {"discard", can.discard},
          {"compute_major", can.compute_major},
          {"compute_minor", can.compute_minor}};
}

Json devices_json(const DeviceRuntime& runtime, std::string* trouble,
                  std::vector<DeviceDescription>* descriptions) {
  Json devices = Json::array();
  for (int device = 0; device < runtime.device_count(); ++device) {
    DeviceDescription description;
    MemoryFigures figures;
    runtime.describe(device, &description);
    runtime.memory_figures(device, &figures);
    if (!description.capabilities.concurrent_managed_access && trouble->empty()) {
      *trouble = fmt::format("device {} ({}) cannot use managed memory concurrently with the host",
                             device, description.name);
    }
    devices.push_back({{"index", device},
                       {"name", description.name},
                       {"total_bytes", description.total_bytes},
                       {"free_bytes", figures.free_bytes},
                       {"capabilities", capabilities_json(description.capabilities)}});
    descriptions->push_back(description);
  }
  return devices;
}

// The values of automatic settings on this machine.
std::map<std::string_view, std::string> automatic_values(
    const Configuration& configuration, std::string_view runtime,
    const std::vector<DeviceDescription>& devices) {
  std::map<std::string_view, std::string> values;
  if (devices.empty()) return values;
  const std::size_t host_bytes = available_host_bytes();
  const MachineBudget budget = machine_budget(devices, configuration, host_bytes);
  const bool hints = std::any_of(budget.devices.begin(), budget.devices.end(),
                                 [](const DevicePlacement& device) { return !device.coherent; });
  const auto reserve = [&](std::size_t bytes) {
    return format_size(bytes - less_reserve(bytes, configuration));
  };
  const std::size_t ranks = std::max(configuration.local_ranks, 1u);
  values["UVMALLOC_RUNTIME"] = runtime;
  values["UVMALLOC_POLICY"] = hints ? "advice and prefetches" : "no hints: memory is shared";
  values["UVMALLOC_BUDGET"] = format_size(budget.hard_bytes);
  values["UVMALLOC_DEVICE_BUDGET"] = "none";
  values["UVMALLOC_RESERVE"] = fmt::format("{} of device 0, {} of the host",
                                           reserve(devices[0].total_bytes), reserve(host_bytes));
  values["UVMALLOC_CPU"] = "managed once the program has initialised the driver";
  values["UVMALLOC_HOST_MEMORY"] = to_string(host_backing_of(devices, configuration.host_backing));
  values["UVMALLOC_FORK_LIMIT"] = format_size(less_reserve(host_bytes, configuration) / ranks);
  values["UVMALLOC_SPAN_SIZE"] = "by the budget and the request";
  values["UVMALLOC_THREAD_CACHE"] =
      format_size(thread_cache_bytes(configuration, budget.hard_bytes));
  return values;
}

Json settings_json(const ParsedConfiguration& parsed,
                   const std::map<std::string_view, std::string>& automatic) {
  Json settings = Json::array();
  for (const EffectiveSetting& setting : parsed.effective) {
    settings.push_back({{"name", setting.description.name},
                        {"value", setting.value},
                        {"default", setting.description.default_text},
                        {"source", setting.from_environment ? "environment" : "default"},
                        {"accepted", setting.description.accepted},
                        {"description", setting.description.description}});
    const auto found = automatic.find(setting.description.name);
    if (setting.value == "auto" && found != automatic.end()) {
      settings.back()["effective"] = found->second;
    }
  }
  return settings;
}

// Arguments and variables may hold any bytes; those that are not UTF-8 become replacement
// characters.
std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void set_native_allocations(std::function<NativeAllocations()> source) {
  native_allocations() = std::move(source);
}

std::string about_json(const CachingManagedAllocator& allocator, bool has_framework) {
  // Built from its values: the library's objects would end the process without memory.
  std::string text = "{";
  auto add = [&](const char* name, const Json& value) {
    text += fmt::format("{}\"{}\":{}", text.size() == 1 ? "" : ",", name, text_of(value));
  };
  describe_process(add);
  const Configuration& configuration = allocator.configuration();
  add("active", true);
  add("framework", has_framework);
  add("policy", to_string(configuration.policy));
  add("threshold_bytes", configuration.host_threshold_bytes);
  add("host_memory", to_string(allocator.host_backing()));
  add("budget_bytes", allocator.budget_bytes());
  text += ",\"devices\":[";
  const char* separator = "";
  for (const DeviceDescription& device : allocator.devices()) {
    text += fmt::format("{}{{\"name\":{},\"total_bytes\":{}}}", separator,
                        text_of(Json(device.name)), device.total_bytes);
    separator = ",";
  }
  return text + "]}";
}

std::string report_json() {
  return text_of(report());
}

std::string report_json_of(const std::string& figures_file, std::string* why_not) {
  const std::optional<Figures> figures = FigureStore::read_file(figures_file, why_not);
  if (!figures) return {};
  Json out = Json::parse(figures->about, nullptr, false);
  if (!out.is_object()) {
    *why_not = "its process ended before it was complete";
    return {};
  }
  add_figures(*figures, &out);
  out["native_allocations"] = nullptr;  // the process would have had to be asked
  return text_of(out);
}

std::string report_text() {
  CachingManagedAllocator* allocator = process_allocator();
  if (allocator == nullptr) return "uvmalloc: not active\n";
  const Statistics statistics = allocator->statistics();
  std::string text = "uvmalloc: report\n";
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    const Gauge& bytes = statistics.facade_bytes[facade];
    text += fmt::format(
        "  {:<7} {:>9} allocations, {:>11} in all, peak {:>11}, {} from the cache\n",
        to_string(static_cast<Facade>(facade)), statistics.allocations[facade],
        format_size(bytes.increased), format_size(bytes.peak), statistics.cache_hits[facade]);
  }
  Json copies = copies_json(statistics.moves);
  text +=
      fmt::format("  moves   {:>9} without a copy ({}), {} copied ({})\n", statistics.moves.total(),
                  format_size(statistics.moves.bytes), copies["count"].get<std::uint64_t>(),
                  format_size(copies["bytes"].get<std::uint64_t>()));
  text += fmt::format("  convert {:>9} CPU tensors at their first move ({})\n",
                      statistics.conversions.count, format_size(statistics.conversions.bytes));
  text += fmt::format("  hints   {:>9} prefetches, {} advice\n",
                      allocator->hints().of(HintKind::kPrefetch).sent.load(),
                      allocator->hints().of(HintKind::kAdvise).sent.load());
  text +=
      fmt::format("  peak    {:>9} of a budget of {}\n", format_size(statistics.live_bytes.peak),
                  format_size(allocator->budget_bytes()));
  return text;
}

std::string doctor_json() {
  const ParsedConfiguration parsed = parse_environment();
  RuntimeChoice choice = open_runtime(parsed.configuration.runtime);
  std::string trouble = choice.reason;
  std::vector<DeviceDescription> descriptions;
  Json devices =
      choice.runtime ? devices_json(*choice.runtime, &trouble, &descriptions) : Json::array();
  Json out = {{"version", version()}};
  out["runtime"] = {
      {"name", choice.runtime ? choice.runtime->name() : parsed.configuration.runtime},
      {"available", choice.runtime != nullptr},
      {"reason", choice.reason}};
  out["devices"] = devices;
  if (!descriptions.empty()) {
    out["host_memory"] =
        to_string(host_backing_of(descriptions, parsed.configuration.host_backing));
  }
  out["configuration"] = settings_json(
      parsed, automatic_values(parsed.configuration, choice.runtime ? choice.runtime->name() : "",
                               descriptions));
  out["configuration_errors"] = parsed.errors;
  out["usable"] = trouble.empty();
  if (!trouble.empty()) {
    out["verdict"] = fmt::format("uvmalloc stays inactive here: {}", trouble);
  } else if (!parsed.configuration.enabled) {
    out["verdict"] =
        "usable; set PYTORCH_ENABLE_UNIFIED_MEMORY=1 and preload libuvmalloc.so to switch it on";
  } else {
    out["verdict"] = "usable and switched on";
  }
  return text_of(out);
}

}  // namespace uvm
