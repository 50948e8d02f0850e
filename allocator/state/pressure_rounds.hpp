// The callbacks by which programs free memory, as one request under pressure calls them:
//  * Callbacks are called one at a time, in the order of their addition, and then from the
//    first again. next() returns after each that says it freed something, so that its caller
//    can retry the request.
//  * They are called again as long as one of them frees something. The rounds end when each
//    callback in turn has freed nothing. An answer counts only if blocks of the allocator were
//    freed during the call, so a callback that always says yes cannot keep a request for ever.
//  * The rounds also end when the callbacks have freed as many bytes as the budget has. This
//    bounds a callback that allocates again what it frees.
//  * A thread inside a callback of an allocator calls none of that allocator.
//
// Belongs to one request on one thread, which calls it without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace uvm {

class PressureRounds {
 public:
  // Returns whether it freed anything.
  using Callback = std::function<bool()>;
  using Callbacks = std::vector<std::shared_ptr<Callback>>;
  // The bytes of all blocks freed since the allocator was made.
  using FreedBytes = std::function<std::int64_t()>;

  // `owner` identifies the allocator. `most_bytes` is its budget.
  PressureRounds(const void* owner, Callbacks callbacks, FreedBytes freed_bytes,
                 std::size_t most_bytes);

  // Calls callbacks until one says that it freed something, and returns true then. False: the
  // rounds are over. Passes on exceptions of callbacks.
  bool next();

 private:
  const void* const owner_;
  const Callbacks callbacks_;
  const FreedBytes freed_bytes_;
  std::size_t left_bytes_;     // that callbacks may free before the rounds end
  std::size_t position_ = 0;   // of the next callback
  std::size_t fruitless_ = 0;  // calls since a callback freed blocks
};

}  // namespace uvm
