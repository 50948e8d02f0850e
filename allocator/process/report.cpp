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

#include <uvmalloc/registry.hpp>
#include <uvmalloc/use_range.hpp>
#include "allocator/base/machine_memory.hpp"
#include "allocator/engine/engine.hpp"
#include "allocator/process/build_facts.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/json_text.hpp"
#include "allocator/process/process_allocator.hpp"
#include "allocator/spans/host_backing.hpp"
#include "allocator/spans/machine_budget.hpp"
#include "hints/sharing/shared_turns.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

const auto kProcessStart = std::chrono::steady_clock::now();

const auto kProcessStartTime = std::chrono::system_clock::now();

std::function<NativeAllocations()>& native_allocations() {
  static auto* const source = new std::function<NativeAllocations()>;
  return *source;
}

std::function<InterposedCalls()>& interposed_calls() {
  static auto* const source = new std::function<InterposedCalls()>;
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

// Returns the start time of the process in ticks of the kernel, or 0 if it is unknown. Together
// with the process number it identifies the process.
std::uint64_t process_start_ticks() {
  constexpr int kField = 22;          // starttime in proc(5)
  constexpr int kFieldAfterName = 3;  // the name before it may contain spaces
  const std::string text = text_of_file("/proc/self/stat");
  std::size_t at = text.rfind(')');
  for (int field = kFieldAfterName; at != std::string::npos && field <= kField; ++field) {
    at = text.find(' ', at + 1);
  }
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// Returns the rank that the launcher has set for the process, or nullptr if it has set none.
const char* rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* text = secure_getenv(name); text != nullptr && *text != '\0') return text;
  }
  return nullptr;
}

void add_process(JsonText* out) {
  const std::chrono::duration<double> since_epoch = kProcessStartTime.time_since_epoch();
  out->add("version", version());
  out->add("program", program_name());
  out->add("pid", getpid());
  out->add("parent", getppid());
  if (const char* text = rank()) {
    out->add("rank", text);
  } else {
    out->add("rank", nullptr);
  }
  out->add("start_time", since_epoch.count());
  out->add("start_ticks", process_start_ticks());
}

void add_allocator(const CachingManagedAllocator& allocator, JsonText* out) {
  const Configuration& configuration = allocator.inspection().configuration();
  out->add("active", true);
  out->add("framework", is_plugin_installed());
  out->add("policy", to_string(configuration.policy));
  out->add("threshold_bytes", configuration.host_threshold_bytes);
  out->add("host_memory", to_string(allocator.inspection().host_backing()));
  out->add("budget_bytes", allocator.limits().budget_bytes());
  out->add_object("live_plan", [&] {
    const live::LiveFigures figures = allocator.inspection().live_figures();
    out->add("kernels", figures.kernels);
    out->add("brought_pages", figures.brought_pages);
    out->add("evicted_pages", figures.evicted_pages);
    out->add("pages_to_peers", figures.pages_to_peers);
    out->add("discarded_pages", figures.discarded_pages);
    out->add("missing_pages", figures.missing_pages);
    out->add("in_place_pages", figures.in_place_pages);
    out->add("checked_pages", figures.checked_pages);
    out->add("wrong_pages", figures.wrong_pages);
  });
  out->add_array("shared_devices", [&] {
    for (const sharing::SharingFigures& figures : allocator.inspection().sharing_figures()) {
      out->add_object_element([&] {
        out->add("programs", figures.programs);
        out->add("held_bytes", figures.held_bytes);
        out->add("turns", figures.turns);
        out->add("waited_ns", figures.waited_ns);
      });
    }
  });
  out->add_array("devices", [&] {
    int number = 0;
    for (const DeviceDescription& device : allocator.inspection().devices()) {
      const DeviceResidency residency = allocator.inspection().device_residency(number++);
      out->add_object_element([&] {
        out->add("name", device.name);
        out->add("total_bytes", device.total_bytes);
        out->add("believed_bytes", residency.believed_bytes);
        if (residency.real_bytes) out->add("real_bytes", *residency.real_bytes);
      });
    }
  });
}

void add_live_groups(const CachingManagedAllocator& allocator, JsonText* out) {
  out->add_array("groups", [&] {
    const auto owner = allocator.engine().groups.owner();
    if (owner == nullptr || allocator.inspection().in_forked_child()) return;
    for (const GroupFigures& group : owner->all_figures()) {
      out->add_object_element([&] {
        out->add("name", group.name);
        out->add("state", to_string(group.state));
        out->add("blocks", group.blocks);
        out->add("bytes", group.bytes);
        out->add("page_bytes", group.page_bytes);
        out->add("device_bytes", group.device_bytes);
        out->add("host_bytes", group.host_bytes);
        out->add("spill_bytes", group.spill_bytes);
        out->add("file_bytes", group.file_bytes);
        out->add("sleeps", group.sleeps);
        out->add("wakes", group.wakes);
        out->add("kept_bytes", group.kept_bytes);
        out->add("left_bytes", group.left_bytes);
        out->add("idle_sleeps", group.idle_sleeps);
      });
    }
  });
}

void add_facades(const Figures& figures, JsonText* out) {
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    const Figures::OfFacade& of = figures.facades[facade];
    const std::uint64_t pool_bytes = figures.totals.pool_bytes[facade].current;
    out->add_object(to_string(static_cast<Facade>(facade)), [&] {
      out->add("allocations", of.allocations);
      out->add("allocated_bytes", of.allocated_bytes);
      out->add("live_bytes", of.live_bytes);
      out->add("cached_bytes", pool_bytes - std::min(of.live_bytes, pool_bytes));
      out->add("peak_bytes", of.peak_bytes);
      out->add("cache_hits", of.cache_hits);
    });
  }
}

MoveStatistics::Copies all_copies(const MoveStatistics& moves) {
  MoveStatistics::Copies all;
  for (const MoveStatistics::Copies& copies : moves.copies) {
    all.count += copies.count;
    all.bytes += copies.bytes;
    all.bytes_at_or_above_threshold += copies.bytes_at_or_above_threshold;
  }
  return all;
}

void add_copies(const MoveStatistics::Copies& copies, JsonText* out) {
  out->add("count", copies.count);
  out->add("bytes", copies.bytes);
  out->add("bytes_at_or_above_threshold", copies.bytes_at_or_above_threshold);
}

void add_hints(const char* name, const Figures::OfHints& kind, JsonText* out) {
  out->add_object(name, [&] {
    out->add("sent", kind.sent);
    out->add("bytes", kind.bytes);
    out->add_object("skipped", [&] {
      for (std::size_t reason = 0; reason < kSkipReasons; ++reason) {
        const std::uint64_t count = kind.skipped[reason];
        if (count != 0) out->add(to_string(static_cast<SkipReason>(reason)), count);
      }
    });
    out->add("failed", kind.failed);
  });
}

void add_moves(const MoveStatistics& moves, JsonText* out) {
  out->add_object("moves", [&] {
    out->add("total", moves.total());
    out->add("host_to_device", moves.host_to_device);
    out->add("device_to_host", moves.device_to_host);
    out->add("device_to_device", moves.device_to_device);
    out->add("bytes", moves.bytes);
  });
  out->add_object("copies_by_moves", [&] {
    add_copies(all_copies(moves), out);
    out->add_object("by_reason", [&] {
      for (std::size_t reason = 0; reason < kCopyReasons; ++reason) {
        const MoveStatistics::Copies& copies = moves.copies[reason];
        if (copies.count == 0) continue;
        out->add_object(to_string(static_cast<CopyReason>(reason)),
                        [&] { add_copies(copies, out); });
      }
    });
  });
}

// What a file of figures has of groups.
void add_groups(const Figures& figures, JsonText* out) {
  out->add_array("groups", [&] {
    for (const Figures::OfGroup& group : figures.groups) {
      out->add_object_element([&] {
        out->add("name", group.name);
        out->add("state", to_string(GroupState{group.state}));
        out->add("page_bytes", group.page_bytes);
        out->add("device_bytes", group.device_bytes);
        out->add("file_bytes", group.file_bytes);
        out->add("sleeps", group.sleeps);
        out->add("wakes", group.wakes);
      });
    }
  });
}

void add_figures(const Figures& figures, JsonText* out) {
  const Totals& totals = figures.totals;
  out->add("peak_bytes", figures.peak_bytes);
  out->add("peak_touched_bytes", totals.touched_bytes.peak);
  out->add("peak_span_bytes", totals.span_bytes.peak);
  std::uint64_t live_bytes = 0;
  for (const Figures::OfFacade& facade : figures.facades) live_bytes += facade.live_bytes;
  const std::uint64_t touched_bytes = totals.touched_bytes.current;
  out->add("cached_bytes", touched_bytes - std::min(live_bytes, touched_bytes));
  out->add_object("facades", [&] { add_facades(figures, out); });
  out->add_object("host_unmanaged", [&] {
    out->add("allocations", figures.unmanaged_host_allocations);
    out->add("allocated_bytes", figures.unmanaged_host_bytes);
  });
  add_moves(totals.moves, out);
  out->add_object("conversions", [&] {
    out->add("count", totals.conversions.count);
    out->add("bytes", totals.conversions.bytes);
  });
  out->add_object("materializations", [&] {
    out->add("copies", totals.materializations.copies);
    out->add("bytes", totals.materializations.bytes);
    out->add("steals", totals.materializations.steals);
  });
  out->add_object("forks", [&] {
    out->add("count", totals.forks.forks);
    out->add("copied_bytes", totals.forks.copied_bytes);
    out->add("shared_bytes", totals.forks.shared_bytes);
    out->add("without_copy", totals.forks.without_copy);
    out->add("seconds", std::chrono::duration<double>(totals.forks.time).count());
  });
  add_hints("prefetches", figures.hints[static_cast<std::size_t>(HintKind::kPrefetch)], out);
  add_hints("advice", figures.hints[static_cast<std::size_t>(HintKind::kAdvise)], out);
  out->add("fences", totals.fences);
  out->add("recalls", totals.recalls);
  if (totals.believed_bytes != 0) {
    out->add_object("compared", [&] {
      out->add("believed_bytes", totals.believed_bytes);
      out->add("real_bytes", totals.real_bytes);
    });
  }
  out->add("pressure_rounds", totals.pressure_rounds);
  out->add("out_of_memory", totals.out_of_memory);
  out->add_object("driver_calls", [&] {
    for (const auto& [name, count] : figures.calls) out->add(name, count);
  });
}

// Writes null without a plugin: no allocators are replaced then, so there is nothing to count.
void add_native_allocations(JsonText* out) {
  if (!native_allocations()) {
    out->add("native_allocations", nullptr);
    return;
  }
  const NativeAllocations made = native_allocations()();
  out->add_object("native_allocations", [&] {
    out->add("device", made.device);
    out->add("pinned", made.pinned);
    out->add("host", made.host);
  });
}

void add_interposed_calls(JsonText* out) {
  if (!interposed_calls()) return;
  const InterposedCalls made = interposed_calls()();
  out->add_object("cuda_calls", [&] {
    for (const InterposedCalls::Call& call : made.calls) {
      out->add_object(call.name, [&] {
        out->add("served", call.served);
        out->add("excluded", call.excluded);
        out->add("no_memory", call.no_memory);
        out->add("left", call.left);
        out->add("beyond_limit", call.beyond_limit);
      });
    }
  });
  out->add_array("static_cuda_runtimes", [&] {
    for (const std::string& file : made.static_runtimes) out->add_element(file);
  });
}

void add_capabilities(const DeviceCapabilities& can, JsonText* out) {
  out->add("managed_memory", can.managed_memory);
  out->add("concurrent_managed_access", can.concurrent_managed_access);
  out->add("migrates_on_fault", can.migrates_on_fault);
  out->add("pageable_memory_access", can.pageable_memory_access);
  out->add("host_page_tables", can.host_page_tables);
  out->add("direct_host_access", can.direct_host_access);
  out->add("integrated", can.integrated);
  out->add("memory_is_host_node", can.memory_is_host_node);
  out->add("discard", can.discard);
  out->add("batches", can.batches);
  out->add("finds_pages", can.finds_pages);
  out->add("coarse_grain", can.coarse_grain);
  out->add("prefetch_blocks", can.prefetch_blocks);
  out->add("compute_major", can.compute_major);
  out->add("compute_minor", can.compute_minor);
}

void add_device(int index, const DeviceDescription& description, const MemoryFigures& figures,
                JsonText* out) {
  out->add_object_element([&] {
    out->add("index", index);
    out->add("name", description.name);
    out->add("total_bytes", description.total_bytes);
    out->add("free_bytes", figures.free_bytes);
    out->add_object("capabilities", [&] { add_capabilities(description.capabilities, out); });
  });
}

// Returns the values that settings of "auto" stand for on this machine.
std::map<std::string_view, std::string> automatic_values(
    const Configuration& configuration, std::string_view runtime,
    const std::vector<DeviceDescription>& devices) {
  std::map<std::string_view, std::string> values;
  if (devices.empty()) return values;
  const std::size_t host_bytes = available_host_bytes();
  const std::size_t host_bytes_less_reserve = host_less_reserve(host_bytes, configuration);
  const MachineBudget budget = machine_budget(devices, configuration, host_bytes);
  const bool hints = std::any_of(budget.devices.begin(), budget.devices.end(),
                                 [](const DevicePlacement& device) { return !device.coherent; });
  const std::size_t device_bytes = devices[0].total_bytes;
  const std::size_t ranks = std::max(configuration.local_ranks, 1u);
  values["UVMALLOC_RUNTIME"] = runtime;
  values["UVMALLOC_POLICY"] = hints ? "advice and prefetches" : "no hints: memory is shared";
  values["UVMALLOC_BUDGET"] = format_size(budget.hard_bytes);
  values["UVMALLOC_DEVICE_BUDGET"] = "none";
  values["UVMALLOC_RESERVE"] =
      fmt::format("{} of device 0, {} of the host",
                  format_size(device_bytes - device_less_reserve(device_bytes, configuration)),
                  format_size(host_bytes - host_bytes_less_reserve));
  values["UVMALLOC_CPU"] = "managed once the program has initialised the driver";
  values["UVMALLOC_HOST_MEMORY"] = to_string(host_backing_of(devices, configuration.host_backing));
  values["UVMALLOC_FORK_LIMIT"] = format_size(host_bytes_less_reserve / ranks);
  values["UVMALLOC_SPILL"] = "no limit, except in a search for the largest batch";
  values["UVMALLOC_SPAN_SIZE"] = "by the budget and the request";
  values["UVMALLOC_THREAD_CACHE"] =
      format_size(thread_cache_bytes(configuration, budget.hard_bytes));
  return values;
}

void add_settings(const ParsedConfiguration& parsed,
                  const std::map<std::string_view, std::string>& automatic, JsonText* out) {
  for (const EffectiveSetting& setting : parsed.effective) {
    out->add_object_element([&] {
      out->add("name", setting.description.name);
      out->add("value", setting.value);
      out->add("default", setting.description.default_text);
      out->add("source", setting.from_environment ? "environment" : "default");
      out->add("accepted", setting.description.accepted);
      out->add("description", setting.description.description);
      const auto found = automatic.find(setting.description.name);
      if (setting.value == "auto" && found != automatic.end()) {
        out->add("effective", found->second);
      }
    });
  }
}

// Returns why uvmalloc cannot use the devices, or an empty string if it can.
std::string trouble_with(const std::vector<DeviceDescription>& devices) {
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::string trouble = why_not_usable(static_cast<int>(device), devices[device]);
    if (!trouble.empty()) return trouble;
  }
  return {};
}

std::string verdict_on(const std::string& trouble, bool is_enabled) {
  if (!trouble.empty()) return fmt::format("uvmalloc stays inactive here: {}", trouble);
  return is_enabled
             ? "usable and switched on"
             : "usable; set PYTORCH_ENABLE_UNIFIED_MEMORY=1 and preload libuvmalloc_preload.so to "
               "switch it on";
}

}  // namespace

void set_native_allocations(std::function<NativeAllocations()> source) {
  native_allocations() = std::move(source);
}

void set_interposed_calls(std::function<InterposedCalls()> source) {
  interposed_calls() = std::move(source);
}

std::string about_json(const CachingManagedAllocator& allocator) {
  JsonText out;
  add_process(&out);
  add_allocator(allocator, &out);
  return std::move(out).finish();
}

std::string report_json() {
  JsonText out;
  add_process(&out);
  CachingManagedAllocator* allocator = process_allocator();
  if (allocator == nullptr) {
    out.add("active", false);
    if (const std::string* reason = inactive_reason()) out.add("reason", *reason);
    return std::move(out).finish();
  }
  add_allocator(*allocator, &out);
  add_live_groups(*allocator, &out);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - kProcessStart;
  out.add("wall_seconds", wall.count());
  add_figures(allocator->inspection().figures(), &out);
  out.add("threads_left_out", 0);  // only a file of figures may lack threads
  add_native_allocations(&out);
  add_interposed_calls(&out);
  return std::move(out).finish();
}

std::string report_json_of(const std::string& figures_file, std::string* why_not) {
  const std::optional<Figures> figures = FigureStore::read_file(figures_file, why_not);
  if (!figures) return {};
  if (!figures->about.starts_with('{') || !nlohmann::json::accept(figures->about)) {
    *why_not = "its process ended before it was complete";
    return {};
  }
  JsonText out(figures->about);
  add_figures(*figures, &out);
  add_groups(*figures, &out);
  out.add("threads_left_out", figures->threads_left_out);
  out.add("native_allocations", nullptr);  // only the process itself could count them
  return std::move(out).finish();
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
  const MoveStatistics::Copies copies = all_copies(statistics.moves);
  text +=
      fmt::format("  moves   {:>9} without a copy ({}), {} copied ({})\n", statistics.moves.total(),
                  format_size(statistics.moves.bytes), copies.count, format_size(copies.bytes));
  text += fmt::format("  convert {:>9} CPU tensors at their first move ({})\n",
                      statistics.conversions.count, format_size(statistics.conversions.bytes));
  text += fmt::format("  hints   {:>9} prefetches, {} advice\n",
                      allocator->inspection().hints().of(HintKind::kPrefetch).sent.load(),
                      allocator->inspection().hints().of(HintKind::kAdvise).sent.load());
  text +=
      fmt::format("  peak    {:>9} of a budget of {}\n", format_size(statistics.live_bytes.peak),
                  format_size(allocator->limits().budget_bytes()));
  return text;
}

std::string doctor_json() {
  const ParsedConfiguration parsed = parse_environment();
  const Configuration& configuration = parsed.configuration;
  const RuntimeChoice choice = open_runtime(configuration.runtime);
  const DeviceRuntime* runtime = choice.runtime.get();
  const std::string name(runtime != nullptr ? runtime->name() : configuration.runtime);
  std::vector<DeviceDescription> devices;
  JsonText out;
  out.add("version", version());
  out.add_object("build", [&] {
    out.add("commit", build_facts().commit);
    out.add("compiler", build_facts().compiler);
  });
  out.add_object("runtime", [&] {
    out.add("name", name);
    out.add("available", runtime != nullptr);
    out.add("reason", choice.reason);
  });
  out.add_array("devices", [&] {
    for (int device = 0; runtime != nullptr && device < runtime->device_count(); ++device) {
      MemoryFigures figures;
      runtime->describe(device, &devices.emplace_back());
      runtime->memory_figures(device, &figures);
      add_device(device, devices.back(), figures, &out);
    }
  });
  if (!devices.empty()) {
    out.add("host_memory", to_string(host_backing_of(devices, configuration.host_backing)));
  }
  const auto automatic =
      automatic_values(configuration, runtime != nullptr ? std::string_view(name) : "", devices);
  out.add_array("configuration", [&] { add_settings(parsed, automatic, &out); });
  out.add_array("configuration_errors", [&] {
    for (const std::string& error : parsed.errors) out.add_element(error);
  });
  const std::string trouble = choice.reason.empty() ? trouble_with(devices) : choice.reason;
  out.add("usable", trouble.empty());
  out.add("verdict", verdict_on(trouble, configuration.enabled));
  return std::move(out).finish();
}

}  // namespace uvm
