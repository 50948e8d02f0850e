// The callbacks of programs that free memory, as one request under pressure calls them. The rule:
//  * Callbacks are called one at a time, in the order in which they were added, and then from the
//    first again. next() returns after each one that says that it freed something, so that its
//    caller can retry the request.
//  * They are called again as long as one of them frees something. The rounds end when each
//    callback in turn has freed nothing. An answer counts only if blocks of the allocator were
//    freed during the call, so a callback that always says yes cannot keep a request for ever.
//  * They end as well when the callbacks have freed as many bytes as the budget has. That bounds a
//    callback that allocates again what it frees.
//  * A thread that is inside a callback of an allocator calls none of that allocator.
//
// Belongs to one request, on one thread, which calls it without locks.
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
  // Bytes of all blocks that were freed since the allocator was made.
  using FreedBytes = std::function<std::int64_t()>;

  // `owner` stands for the allocator. `most_bytes` is its budget.
  PressureRounds(const void* owner, Callbacks callbacks, FreedBytes freed_bytes,
                 std::size_t most_bytes);

  // Calls callbacks until one says that it freed something, and returns true. Returns false if the
  // rounds are over. Passes on what a callback throws.
  bool next();

 private:
  const void* const owner_;
  const Callbacks callbacks_;
  const FreedBytes freed_bytes_;
  std::size_t left_bytes_;     // that may be freed before the rounds end
  std::size_t position_ = 0;   // of the callback to be called next
  std::size_t fruitless_ = 0;  // calls since blocks were freed by one
};

}  // namespace uvm
