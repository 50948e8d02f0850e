// Pools of a device that belong to graphs, whose replays use their memory without asking, or to
// users: who uses them, and which requests go there. The memory itself is in BlockPools.
//
// Guarded by the allocator's lock, but for any_open() and is_capturing(), which may be asked at any
// time. Filters are called by whoever asks where a request goes, without the lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

class PrivatePools {
 public:
  // Whether requests of a stream go there.
  using StreamFilter = std::function<bool(StreamHandle)>;

  explicit PrivatePools(int devices) : devices_(devices) {}

  bool any_open() const { return open_.load(std::memory_order_relaxed) != 0; }
  // Nothing may be waited for, queried or given to the driver.
  bool is_capturing() const { return capturing_.load(std::memory_order_relaxed) != 0; }

  // Opens the pool, made where there is none, for one user more. Returns the scope's number, not 0.
  // std::invalid_argument: `id` is 0, or there is no such device.
  std::uint64_t begin(int device, std::uint64_t id, StreamFilter routed, bool capturing);
  // One user more, as begin() without opening it.
  void retain(int device, std::uint64_t id);
  // Closes the scope of that number; 0: the innermost. False: that is not open.
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  // One user less; with the last one the pool is gone, and what was open of it. False: there is no
  // such pool.
  bool release(int device, std::uint64_t id);
  // From now on its blocks have whole pages for themselves. False: there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);

  std::size_t users(int device, std::uint64_t id) const;  // 0: there is no such pool
  // Whether a graph was captured with it.
  bool is_captured(int device, std::uint64_t id) const;

  struct Scope {
    int device = 0;
    std::uint64_t pool = 0;
    std::uint64_t number = 0;
    std::shared_ptr<StreamFilter> routed;
    bool capturing = false;
    bool whole_pages = false;  // of its pool, as open_scopes() finds it
  };
  // Those of a device, innermost first.
  std::vector<Scope> open_scopes(int device) const;

 private:
  struct PrivatePool {
    std::size_t users = 0;
    bool whole_pages = false;
    bool captured = false;  // some graph's replays use its memory
  };
  using Key = std::pair<int, std::uint64_t>;  // device and id
  PrivatePool& make(const Key& key);
  void close(std::vector<Scope>::iterator scope);

  const int devices_;
  std::map<Key, PrivatePool> pools_;
  std::vector<Scope> scopes_;  // innermost last
  std::uint64_t opened_ = 0;
  std::atomic<std::size_t> open_ = 0;       // scopes
  std::atomic<std::size_t> capturing_ = 0;  // of these, how many capture
};

}  // namespace uvm
