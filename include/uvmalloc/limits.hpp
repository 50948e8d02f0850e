// Sets the limits of memory, and what happens when memory is short. Thread-safe. Functions throw
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

  // Limits the bytes of device memory in pools of that device. SIZE_MAX: only the budget applies.
  // The default is Configuration::device_budget_bytes. Lowering the limit frees no memory.
  void set_device_limit(int device, std::size_t most_bytes);
  // Returns the most bytes that this process may use at a time.
  std::size_t budget_bytes() const;
  // Returns the budget at the start: Configuration::budget_bytes if set, else the machine's budget.
  std::size_t first_budget_bytes() const;
  // Changes the budget. From then on the budget no longer follows the machine. Lowering the budget
  // frees no memory: until less than the budget is in use, requests that need new pages fail. The
  // only exception is one page of small objects for each memory kind and device. Throws
  // std::invalid_argument below 2 MiB.
  void set_budget(std::size_t most_bytes);
  // Returns the bytes of the device's memory that this process can still get under the budgets.
  // `driver` contains the driver's figures. A limit set by set_device_limit() is ignored, because
  // programs know it and compare the result with the figures of other allocators.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;

  // Adds a callback, which lives as long as the allocator. It should free memory that the program
  // does not need, and return whether it freed anything.
  //
  // A request that cannot be served calls the callbacks one by one on its thread, without locks.
  // The request is retried after each callback that freed something. The callbacks are called again
  // as long as one of them frees something. A request larger than the budget or the device's limit
  // calls no callback, because freeing memory cannot help it.
  //
  // A callback may allocate; its own requests call no callback of this allocator. Several threads
  // may call a callback at the same time. Exceptions of a callback reach the caller of the request.
  using PressureCallback = std::function<bool()>;
  void add_pressure_callback(PressureCallback callback);

  // Gives back the idle cached memory that is due at `now`. If UVMALLOC_DECAY is set, allocations
  // and frees call this; a program may call it as well.
  void decay(std::chrono::steady_clock::time_point now);

 private:
  Engine* engine_;
};

inline Limits CachingManagedAllocator::limits() const {
  return Limits(*engine_);
}

}  // namespace uvm
