// The report on a process and the doctor's findings, as JSON and as text.
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <mutex>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <uvmalloc/allocator/process_allocator.hpp>
#include <uvmalloc/runtime/registry.hpp>

namespace uvm {
namespace {

using Json = nlohmann::ordered_json;

const auto kProcessStart = std::chrono::steady_clock::now();

std::function<FrameworkFigures()>& framework_figures() {
  static auto* const source = new std::function<FrameworkFigures()>;
  return *source;
}

std::string program_name() {
  std::ifstream file("/proc/self/cmdline");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

Json facades_json(const Statistics& statistics) {
  Json out = Json::object();
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    const Gauge& bytes = statistics.facade_bytes[facade];
    out[to_string(static_cast<Facade>(facade))] = {{"allocations", statistics.allocations[facade]},
                                                   {"allocated_bytes", bytes.increased},
                                                   {"live_bytes", bytes.current},
                                                   {"peak_bytes", bytes.peak},
                                                   {"cache_hits", statistics.cache_hits[facade]}};
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

Json hints_json(const HintCounters::Kind& kind) {
  Json skipped = Json::object();
  for (std::size_t reason = 0; reason < kSkipReasons; ++reason) {
    if (auto count = kind.skipped[reason].load(); count != 0) {
      skipped[to_string(static_cast<SkipReason>(reason))] = count;
    }
  }
  return {{"sent", kind.sent.load()},
          {"bytes", kind.bytes.load()},
          {"skipped", skipped},
          {"failed", kind.failed.load()}};
}

Json report() {
  Json out = {{"version", version()}, {"program", program_name()}, {"pid", getpid()}};
  CachingManagedAllocator* allocator = process_allocator();
  out["active"] = allocator != nullptr;
  if (allocator == nullptr) return out;
  const Statistics statistics = allocator->statistics();
  const MoveStatistics& moves = statistics.moves;
  FrameworkFigures framework;
  if (framework_figures()) framework = framework_figures()();
  std::chrono::duration<double> wall = std::chrono::steady_clock::now() - kProcessStart;
  out["policy"] = to_string(allocator->configuration().policy);
  out["threshold_bytes"] = allocator->configuration().host_threshold_bytes;
  out["host_memory"] = to_string(allocator->host_backing());
  out["budget_bytes"] = allocator->budget_bytes();
  out["peak_bytes"] = statistics.live_bytes.peak;
  out["peak_touched_bytes"] = statistics.touched_bytes.peak;
  out["peak_span_bytes"] = statistics.span_bytes.peak;
  out["wall_seconds"] = wall.count();
  out["facades"] = facades_json(statistics);
  out["host_unmanaged"] = {{"allocations", framework.unmanaged_host_allocations},
                           {"allocated_bytes", framework.unmanaged_host_bytes}};
  out["moves"] = {{"total", moves.total()},
                  {"host_to_device", moves.host_to_device},
                  {"device_to_host", moves.device_to_host},
                  {"device_to_device", moves.device_to_device},
                  {"bytes", moves.bytes}};
  out["copies_by_moves"] = copies_json(moves);
  out["materializations"] = {{"copies", statistics.materializations.copies},
                             {"bytes", statistics.materializations.bytes},
                             {"steals", statistics.materializations.steals}};
  out["forks"] = {{"count", statistics.forks.forks},
                  {"copied_bytes", statistics.forks.copied_bytes},
                  {"shared_bytes", statistics.forks.shared_bytes},
                  {"without_copy", statistics.forks.without_copy},
                  {"seconds", std::chrono::duration<double>(statistics.forks.time).count()}};
  out["prefetches"] = hints_json(allocator->hints().of(HintKind::kPrefetch));
  out["advice"] = hints_json(allocator->hints().of(HintKind::kAdvise));
  out["fences"] = statistics.fences;
  out["recalls"] = statistics.recalls;
  out["pressure_rounds"] = statistics.pressure_rounds;
  out["out_of_memory"] = statistics.out_of_memory;
  out["driver_calls"] = allocator->runtime().calls();
  out["native_allocations"] = {{"device", framework.native_device_allocations},
                               {"pinned", framework.native_pinned_allocations},
                               {"host", framework.native_host_allocations}};
  return out;
}

Json capabilities_json(const DeviceCapabilities& can) {
  return {{"managed_memory", can.managed_memory},
          {"concurrent_managed_access", can.concurrent_managed_access},
          {"pageable_memory_access", can.pageable_memory_access},
          {"host_page_tables", can.host_page_tables},
          {"direct_host_access", can.direct_host_access},
          {"integrated", can.integrated},
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

Json settings_json(const ParsedConfiguration& parsed) {
  Json settings = Json::array();
  for (const EffectiveSetting& setting : parsed.effective) {
    settings.push_back({{"name", setting.description.name},
                        {"value", setting.value},
                        {"default", setting.description.default_text},
                        {"source", setting.from_environment ? "environment" : "default"},
                        {"accepted", setting.description.accepted},
                        {"description", setting.description.description}});
  }
  return settings;
}

// Arguments and variables may hold any bytes; what is no UTF-8 shows as replacement characters.
std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void set_framework_figures(std::function<FrameworkFigures()> source) {
  framework_figures() = std::move(source);
}

std::string report_json() {
  return text_of(report());
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
  out["configuration"] = settings_json(parsed);
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
