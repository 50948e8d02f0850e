// The report on a process, as JSON and as text.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "allocator/engine/engine.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/json_text.hpp"
#include "allocator/process/process_allocator.hpp"
#include "allocator/process/process_facts.hpp"
#include "allocator/process/report_figures.hpp"
#include "allocator/spans/host_backing.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

std::function<NativeAllocations()>& native_allocations() {
  static auto* const source = new std::function<NativeAllocations()>;
  return *source;
}

std::function<InterposedCalls()>& interposed_calls() {
  static auto* const source = new std::function<InterposedCalls()>;
  return *source;
}

void add_settings_in_force(const CachingManagedAllocator& allocator, JsonText* out) {
  const Configuration& configuration = allocator.inspection().configuration();
  out->add("active", true);
  out->add("framework", is_plugin_installed());
  out->add("policy", to_string(configuration.policy));
  out->add("threshold_bytes", configuration.host_threshold_bytes);
  out->add("host_memory", to_string(allocator.inspection().host_backing()));
  out->add("budget_bytes", allocator.limits().budget_bytes());
}

void add_live_plan(const CachingManagedAllocator& allocator, JsonText* out) {
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
}

void add_shared_devices(const CachingManagedAllocator& allocator, JsonText* out) {
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
}

void add_devices(const CachingManagedAllocator& allocator, JsonText* out) {
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

constexpr std::array kAllocatorSections = {&add_settings_in_force, &add_live_plan,
                                           &add_shared_devices, &add_devices};

void add_allocator(const CachingManagedAllocator& allocator, JsonText* out) {
  for (const auto section : kAllocatorSections) section(allocator, out);
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

// Adds the groups in a file of figures.
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
  out.add("wall_seconds", process_age().count());
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

}  // namespace uvm
