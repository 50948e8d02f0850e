// The memory that kernels of torch's captured graphs use. A replay runs no operator, so uses are
// recorded during the capture. While the allocator plans moves, it gets them before each replay
// (docs/oversubscription.md, "Graphs").
//
// Thread-safe; its mutex is not held when the allocator is called.
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
  // Lives for ever.
  static CapturedGraphs& instance();

  // Call end_capture() for each begin_capture(), also if the capture fails. Operators are watched
  // between the two. If captures overlap, their uses are dropped.
  void begin_capture();
  void end_capture();
  bool is_capturing() const { return captures_.load(std::memory_order_relaxed) != 0; }
  // The uses of an operator whose stream is being captured.
  void add(c10::DeviceIndex device, std::span<const live::UseRange> uses);

  // `graph` is torch's object for the capture that ended last.
  void name_last_capture(const void* graph);
  // Reports the graph's uses, on the current stream.
  void before_replay(const void* graph) const;
  void forget(const void* graph);

 private:
  struct Uses {
    c10::DeviceIndex device = 0;
    std::vector<live::UseRange> ranges;
  };

  mutable std::mutex mutex_;
  std::atomic<int> captures_ = 0;
  bool is_mixed_ = false;  // another capture ran when the last one began
  Uses noted_;
  std::unordered_map<const void*, std::shared_ptr<const Uses>> graphs_;
};

}  // namespace uvm::torch_plugin
