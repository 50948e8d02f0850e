// Private pools of device memory, for graphs and for pools of the program. Replays of a captured
// graph use the graph's memory without a request. Thread-safe. Functions throw std::out_of_range if
// the device does not exist, unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class PrivatePools {
 public:
  explicit PrivatePools(Engine& engine) : engine_(&engine) {}

  // Opens the private pool `id` (not 0). Until end(), the pool serves all device requests on
  // streams for which `routed` returns true, and no other requests. If several pools match, the
  // pool that was opened last serves the request.
  //
  // While a capturing pool is open, no thread waits for work, queries it, or gives memory to the
  // driver. Fences are recorded when the last capture has ended.
  //
  // The first call with an `id` makes the pool, and each call adds a user. A private pool keeps its
  // memory until release() was called as often as begin() and retain(). Throws
  // std::invalid_argument if `id` is 0 or the device does not exist.
  using StreamFilter = std::function<bool(StreamHandle)>;
  // Returns the scope's number, never 0.
  std::uint64_t begin(int device, std::uint64_t id, StreamFilter routed, bool capturing);
  // Ends the scope with that number (0: the innermost). Returns false if no such scope is open.
  bool end(int device, std::uint64_t id, std::uint64_t scope = 0);
  // Removes a user. If it was the last user, also ends the open scopes. Returns false if there is
  // no such pool.
  bool release(int device, std::uint64_t id);
  // Adds a user without opening the pool; makes the pool if it does not exist. Throws the same
  // exceptions as begin().
  void retain(int device, std::uint64_t id);
  std::size_t users(int device, std::uint64_t id) const;  // 0 if the pool does not exist
  // From now on each block of the pool shares its 2 MiB pages with no other block. Call this before
  // the pool's first block. Returns false if the pool does not exist.
  bool give_whole_pages(int device, std::uint64_t id);

  // Returns the pool's live blocks, by address.
  std::vector<PrivateBlock> blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks live in the pool, at their addresses: frees all other blocks, and
  // allocates the missing ones. Changes no contents. Waits for streams that use the freed blocks.
  // No other thread may use the pool meanwhile. Throws std::invalid_argument if a block is not free
  // at its address; some blocks may have changed by then. Throws std::logic_error during a capture.
  void restore(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks);

  // Gives back the cached memory of a pool without users, as
  // CachingManagedAllocator::release_cached() does.
  void release_cached(int device, std::uint64_t id);

 private:
  Engine* engine_;
};

inline PrivatePools CachingManagedAllocator::private_pools() const {
  return PrivatePools(*engine_);
}

}  // namespace uvm
