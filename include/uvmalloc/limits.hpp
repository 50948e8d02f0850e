// The limits of memory, and what happens if it runs short. Thread-safe. Functions throw
// std::out_of_range if the device does not exist.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/device_runtime.hpp>

namespace uvm {

class Limits {
 public:
  explicit Limits(Engine& engine) : engine_(&engine) {}

  // Limits the bytes of device memory in pools of that device; SIZE_MAX: only the budget counts.
  // The default is Configuration::device_budget_bytes. Memory above a lowered limit stays.
  void set_device_limit(int device, std::size_t most_bytes);
  // The most bytes that this process may use at a time.
  std::size_t budget_bytes() const;
  // Returns the bytes of the device's memory that this process can still get under the budgets,
  // given the driver's figures. A limit set by set_device_limit() does not count: programs know it,
  // and compare with other allocators' figures.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Adds a callback, which lives as long as the allocator. It frees memory that the program can
  // spare, and returns whether it freed anything.
  //
  // A request that cannot be served calls the callbacks one by one on its thread, without locks.
  // The request is retried after each callback that freed something. The callbacks are called again
  // as long as one of them frees something. A request larger than the budget or the device's limit
  // calls none, since freeing cannot help it.
  //
  // A callback may allocate: its thread calls no callback of this allocator meanwhile. Several
  // threads may call it at a time. Its exceptions leave the request.
  using PressureCallback = std::function<bool()>;
  void add_pressure_callback(PressureCallback callback);

  // Gives back the idle cached memory that is due at `now`. Allocations and frees call it if
  // UVMALLOC_DECAY is set; a program may call it as well.
  void decay(std::chrono::steady_clock::time_point now);

 private:
  Engine* engine_;
};

inline Limits CachingManagedAllocator::limits() const {
  return Limits(*engine_);
}

}  // namespace uvm
