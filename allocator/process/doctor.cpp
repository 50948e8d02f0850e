// The doctor's findings, as JSON: the build, the devices, the settings, and whether uvmalloc can be
// used here.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <uvmalloc/registry.hpp>
#include "allocator/base/machine_memory.hpp"
#include "allocator/process/build_facts.hpp"
#include "allocator/process/json_text.hpp"
#include "allocator/process/process_allocator.hpp"
#include "allocator/spans/host_backing.hpp"
#include "allocator/spans/machine_budget.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

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
