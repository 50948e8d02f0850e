// The private pools of devices: the users of each pool, and the requests that it serves. A private
// pool belongs to the program, or to graphs. Replays of graphs use the pool's memory without a
// request. The memory itself is in BlockPools.
//
// Guarded by the state lock, except any_open(), which any thread may call at any time. Filters are
// called without the lock, on the thread of the request.
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
  // Returns whether requests of a stream go to the pool.
  using StreamFilter = std::function<bool(StreamHandle)>;

  explicit PrivatePoolTable(int devices) : devices_(devices) {}
  ~PrivatePoolTable();
  PrivatePoolTable(const PrivatePoolTable&) = delete;
  PrivatePoolTable& operator=(const PrivatePoolTable&) = delete;

  bool any_open() const { return open_.load(std::memory_order_relaxed) != 0; }

  // Opens a scope of the pool for one more user; makes the pool if it does not exist. Returns the
  // scope's number, never 0. Throws std::invalid_argument if `id` is 0 or the device does not
  // exist. If `capturing`, the caller has noted a capture in the CaptureGuard; the end of the
  // scope also notes the end of that capture.
  std::uint64_t begin(int device, std::uint64_t id, StreamFilter routed, bool capturing);
  // Adds a user without opening a scope; makes the pool if it does not exist.
  void retain(int device, std::uint64_t id);
  // Closes the scope with that number (0: the innermost). Returns false if no such scope is open.
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  // Removes a user. If it was the last user, removes the pool and closes its scopes. Returns false
  // if the pool does not exist.
  bool release(int device, std::uint64_t id);
  // Gives each later block of the pool its own pages. Returns false if the pool does not exist.
  bool give_whole_pages(int device, std::uint64_t id);

  std::size_t users(int device, std::uint64_t id) const;  // 0 if the pool does not exist
  // Returns whether a graph was captured with the pool.
  bool is_captured(int device, std::uint64_t id) const;

  struct Scope {
    int device = 0;
    std::uint64_t pool = 0;
    std::uint64_t number = 0;
    std::shared_ptr<StreamFilter> routed;
    bool capturing = false;
    bool whole_pages = false;  // the value of its pool; filled in by open_scopes()
  };
  // Returns the open scopes of a device, the innermost first.
  std::vector<Scope> open_scopes(int device) const;

 private:
  struct PrivatePool {
    std::size_t users = 0;
    bool whole_pages = false;
    bool captured = false;  // replays of a graph use its memory
  };
  using Key = std::pair<int, std::uint64_t>;  // device and id
  PrivatePool& make(const Key& key);
  void close(std::vector<Scope>::iterator scope);

  const int devices_;
  std::map<Key, PrivatePool> pools_;
  std::vector<Scope> scopes_;  // open scopes, the innermost last
  std::uint64_t opened_ = 0;
  std::atomic<std::size_t> open_ = 0;  // number of open scopes
};

}  // namespace uvm
