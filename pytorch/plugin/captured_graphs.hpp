// Records the memory that kernels of torch's captured graphs use. A replay runs no operator, so the
// uses are recorded during the capture. While the allocator plans moves, it receives the uses
// before each replay (docs/internals/oversubscription.md, "Graphs").
//
// Thread-safe. Its mutex is not held during calls of the allocator.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <c10/core/Device.h>

#include <uvmalloc/use_range.hpp>

namespace uvm::torch_plugin {

class CapturedGraphs {
 public:
  // The instance lives for ever.
  static CapturedGraphs& instance();

  // Call end_capture() once for each begin_capture(), even if the capture fails. Operators are
  // watched between the two calls. If captures overlap, their uses are dropped.
  void begin_capture();
  void end_capture();
  bool is_capturing() const { return captures_.load(std::memory_order_relaxed) != 0; }
  // Adds the uses of an operator on a stream that is being captured.
  void add(c10::DeviceIndex device, std::span<const live::UseRange> uses);

  // Stores the uses recorded in the capture that ended last under `graph`, torch's graph object.
  void name_last_capture(const void* graph);
  // Reports the graph's uses to the allocator, on the current stream.
  void before_replay(const void* graph) const;
  void forget(const void* graph);

 private:
  struct Uses {
    c10::DeviceIndex device = 0;
    std::vector<live::UseRange> ranges;
  };

  mutable std::mutex mutex_;
  std::atomic<int> captures_ = 0;
  bool is_mixed_ = false;  // another capture was running when the last one began
  Uses noted_;
  std::unordered_map<const void*, std::shared_ptr<const Uses>> graphs_;
};

}  // namespace uvm::torch_plugin
