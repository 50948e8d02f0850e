// The runtime and the services built on it, for all parts of an allocator. The state lock guards no
// member, because each member is constant or thread-safe by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include "allocator/counters/figure_store.hpp"
#include "allocator/spans/machine_budget.hpp"
#include "allocator/spans/span_memory.hpp"
#include "allocator/state/stream_work.hpp"
#include "allocator/trace/trace_recorder.hpp"
#include "hints/event_pool.hpp"
#include "hints/hint_sender.hpp"
#include "runtime/counting_runtime.hpp"

namespace uvm {

// Throws std::invalid_argument, whose message begins with `what`, if a budget is below 2 MiB.
void require_budget(std::string_view what, std::size_t bytes);

struct Machine {
  // Throws std::runtime_error if there is no device or a device cannot be used. Throws
  // std::invalid_argument if a budget is below 2 MiB.
  Machine(std::unique_ptr<DeviceRuntime> device_runtime, const Configuration& settings,
          const std::string& figures_file);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int device_count() const { return runtime.device_count(); }
  const DeviceDescription& device(int index) const {
    return devices[static_cast<std::size_t>(index)];
  }
  // Throw std::out_of_range if the device does not exist.
  void check_device(int device) const;
  void check_place(Place place) const;

  // Returns whether this process is a forked child, which must not call the runtime.
  bool in_forked_child() const { return forked_child.load(std::memory_order_relaxed); }
  void require_device() const;  // throws std::runtime_error in a forked child

  const Configuration configuration;
  CountingRuntime runtime;
  const std::vector<DeviceDescription> devices;
  const MachineBudget budget;  // as measured at the start
  SpanMemory span_memory;
  FigureStore figure_store;
  EventPool events;
  StreamWork stream_work;
  HintSender sender;
  TraceRecorder trace;
  std::atomic<bool> forked_child = false;
};

}  // namespace uvm
