// The private pools of devices: how many users each has, and which requests it serves. A private
// pool belongs to the program, or to graphs, whose replays use its memory without a request. The
// memory itself is in BlockPools.
//
// Guarded by the state lock, except any_open(), which may be called at any time.
// Filters are called without the lock, on the thread of the request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

class PrivatePoolTable {
 public:
  // Whether requests of a stream go to the pool.
  using StreamFilter = std::function<bool(StreamHandle)>;

  explicit PrivatePoolTable(int devices) : devices_(devices) {}
  ~PrivatePoolTable();
  PrivatePoolTable(const PrivatePoolTable&) = delete;
  PrivatePoolTable& operator=(const PrivatePoolTable&) = delete;

  bool any_open() const { return open_.load(std::memory_order_relaxed) != 0; }

  // Opens a scope of the pool for one more user; makes the pool if it does not exist. Returns the
  // scope's number, never 0. std::invalid_argument if `id` is 0 or the device does not exist. If
  // `capturing`, the caller has begun a capture in the process's CaptureGuard, which ends when the
  // scope closes.
  std::uint64_t begin(int device, std::uint64_t id, StreamFilter routed, bool capturing);
  // Adds a user without opening a scope; makes the pool if it does not exist.
  void retain(int device, std::uint64_t id);
  // Closes the scope with that number; 0: the innermost scope. False if no such scope is open.
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  // Removes a user. The last one removes the pool and closes its open scopes. False if there is no
  // such pool.
  bool release(int device, std::uint64_t id);
  // Later blocks of the pool have pages for themselves. False if there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);

  std::size_t users(int device, std::uint64_t id) const;  // 0 if there is no such pool
  // Whether a graph was captured with the pool.
  bool is_captured(int device, std::uint64_t id) const;

  struct Scope {
    int device = 0;
    std::uint64_t pool = 0;
    std::uint64_t number = 0;
    std::shared_ptr<StreamFilter> routed;
    bool capturing = false;
    bool whole_pages = false;  // of its pool; set by open_scopes()
  };
  // The open scopes of a device, innermost first.
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
  std::atomic<std::size_t> open_ = 0;  // scopes
};

}  // namespace uvm
