// The stream-ordered pools of all devices, with the default and the current pool of each device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/engine/export.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class SharedState;
using PoolHandle = void*;

// A stream-ordered pool in its simplest form: it keeps no freed memory, so its reserved bytes equal
// the bytes in use.
struct Pool {
  int device;
  std::uint64_t most_bytes = 0;               // 0: no limit
  std::uint64_t release_threshold_bytes = 0;  // stored, without effect
  std::uint64_t used_bytes = 0;
  std::uint64_t used_high_bytes = 0;
};

// Guarded by the machine's mutex.
struct PoolTable {
  std::map<PoolHandle, Pool> pools;
  std::vector<PoolHandle> defaults;  // by device
  std::vector<PoolHandle> currents;  // by device
  std::uintptr_t next = 1;

  // Returns null if there is no such pool.
  Pool* find(PoolHandle handle);
};

class UVMSIM_EXPORT Pools {
 public:
  // Creates the default pool of each device and makes it the current one.
  explicit Pools(SharedState& shared);

  PoolHandle default_of(int device);
  PoolHandle current_of(int device);
  Status set_current(int device, PoolHandle pool);
  // `most_bytes` limits the bytes in use at once; 0: no limit.
  PoolHandle create(int device, std::uint64_t most_bytes);
  // Returns kInvalidValue for a default pool. Allocations from the pool stay valid.
  Status destroy(PoolHandle pool);
  std::optional<Pool> find(PoolHandle pool);
  Status set_release_threshold(PoolHandle pool, std::uint64_t bytes);
  Status reset_high(PoolHandle pool);
  Status allocate(PoolHandle pool, std::size_t bytes, void** out);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
