// The memory that the kernels of torch's captured graphs use. A replay runs no operator. So the
// uses are noted while a graph is captured, and given to the allocator before each replay, while it
// plans moves (docs/oversubscription.md, "Graphs").
//
// Thread-safe; a mutex of its own guards the rest, and is not held when the allocator is called.
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

  // Each capture that begins ends, also if it fails. Operators are watched meanwhile. Of captures
  // that run at the same time no uses are known.
  void begin_capture();
  void end_capture();
  bool is_capturing() const { return captures_.load(std::memory_order_relaxed) != 0; }
  // The uses of an operator whose stream is being captured.
  void add(c10::DeviceIndex device, std::span<const live::UseRange> uses);

  // `graph` is torch's object for the capture that ended last.
  void name_last_capture(const void* graph);
  // On the current stream.
  void before_replay(const void* graph) const;
  void forget(const void* graph);

 private:
  struct Uses {
    c10::DeviceIndex device = 0;
    std::vector<live::UseRange> ranges;
  };

  mutable std::mutex mutex_;
  std::atomic<int> captures_ = 0;
  bool is_mixed_ = false;  // more than one capture goes on, or did
  Uses noted_;
  std::unordered_map<const void*, std::shared_ptr<const Uses>> graphs_;
};

}  // namespace uvm::torch_plugin
