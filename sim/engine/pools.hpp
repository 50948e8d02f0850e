// The stream-ordered pools of all devices, with the default and the current pool of each device.
// Guarded by the machine's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/engine/status.hpp"

namespace uvmsim {

using PoolHandle = void*;

// A stream-ordered pool in its simplest form: it keeps no freed memory, so its reserved bytes are
// those in use.
struct Pool {
  int device;
  std::uint64_t most_bytes = 0;               // 0: no limit
  std::uint64_t release_threshold_bytes = 0;  // stored, without effect
  std::uint64_t used_bytes = 0;
  std::uint64_t used_high_bytes = 0;
};

class Pools {
 public:
  // Creates the default pool of each device and makes it the current one.
  explicit Pools(int devices);

  // Returns nullptr if there is no such pool.
  Pool* find(PoolHandle handle);
  PoolHandle default_of(int device) const;
  PoolHandle current_of(int device) const;
  Status set_current(int device, PoolHandle handle);
  PoolHandle create(int device, std::uint64_t most_bytes = 0);
  // kInvalidValue for a default pool.
  Status destroy(PoolHandle handle);

 private:
  std::map<PoolHandle, Pool> pools_;
  std::vector<PoolHandle> defaults_;  // by device
  std::vector<PoolHandle> currents_;  // by device
  std::uintptr_t next_ = 1;
};

}  // namespace uvmsim
