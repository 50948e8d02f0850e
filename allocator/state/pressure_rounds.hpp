// Calls the callbacks by which programs free memory, for one request under pressure:
//  * Callbacks are called one at a time, in the order of their addition, and then again from the
//    first. next() returns after each callback that reports that it freed something, so that the
//    caller can retry the request.
//  * The rounds end when all callbacks, one after another, have freed nothing. A callback's result
//    counts only if blocks of the allocator were freed during the call. So a callback that always
//    returns true cannot prolong a request for ever.
//  * The rounds also end when the callbacks have freed as many bytes as the whole budget. This
//    limits a callback that allocates again what it frees.
//  * A thread that is inside a callback of an allocator calls no callback of that allocator.
//
// An object belongs to one request on one thread, which calls it without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace uvm {

class PressureRounds {
 public:
  // Returns whether the callback freed anything.
  using Callback = std::function<bool()>;
  using Callbacks = std::vector<std::shared_ptr<Callback>>;
  // Returns the bytes of all blocks freed since the allocator was made.
  using FreedBytes = std::function<std::int64_t()>;

  // `owner` identifies the allocator; `most_bytes` is the allocator's budget.
  PressureRounds(const void* owner, Callbacks callbacks, FreedBytes freed_bytes,
                 std::size_t most_bytes);

  // Calls callbacks until one reports that it freed something, and then returns true. Returns false
  // if the rounds are over. Passes on exceptions of callbacks.
  bool next();

 private:
  const void* const owner_;
  const Callbacks callbacks_;
  const FreedBytes freed_bytes_;
  std::size_t left_bytes_;     // the bytes that callbacks may still free before the rounds end
  std::size_t position_ = 0;   // the index of the next callback
  std::size_t fruitless_ = 0;  // the number of calls since a callback freed blocks
};

}  // namespace uvm
