// The simulated machine. The stand-ins translate calls of their interfaces into calls of the
// machine. The machine is made at its first use and lives until the process ends. Its parts share
// one mutex, which is never held while the program's code, a copy of bytes or another library runs
// (machine_state.hpp). A child that is forked after the machine was made has no machine:
// lost_in_fork() is true, and no other function may be called.
#pragma once

#include <memory>
#include <string>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/export.hpp"
#include "sim/engine/graphs.hpp"
#include "sim/engine/mappings.hpp"
#include "sim/engine/memory.hpp"
#include "sim/engine/placements.hpp"
#include "sim/engine/pools.hpp"
#include "sim/engine/settings.hpp"
#include "sim/engine/sharing.hpp"
#include "sim/engine/streams.hpp"
#include "sim/engine/work.hpp"

namespace uvmsim {

class UVMSIM_EXPORT Machine {
 public:
  static Machine& instance();
  // Returns null before the first use, and in a forked child that has lost the machine.
  static Machine* existing();
  static bool lost_in_fork();
  ~Machine() = delete;

  int device_count() const { return settings_.devices; }
  bool has_device(int device) const { return settings_.has_device(device); }
  const MachineProfile& profile() const { return settings_.machine; }

  Memory& memory() { return memory_; }
  Pools& pools() { return pools_; }
  Mappings& mappings() { return mappings_; }
  Sharing& sharing() { return sharing_; }
  Placements& placements() { return placements_; }
  Streams& streams() { return streams_; }
  Graphs& graphs() { return graphs_; }
  Work& work() { return work_; }

  // Call this at the first use of a device. The device's context takes a part of the device's
  // memory until destroy_context().
  void open_context(int device);
  // Destroys all memory, streams and events of the context with that number; for a primary context,
  // also ends captures of its per-thread streams and its peer access, and makes its default pool
  // current again.
  void destroy_context(int context);

  uvmsim_counters counters();
  void reset_counters();
  // For tests: describes an inconsistency of chunks, masks and charges; empty if all are
  // consistent.
  std::string broken_invariant();

 private:
  Machine();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  const Settings& settings_;
  const std::unique_ptr<SharedState> shared_;
  Memory memory_{*shared_};
  Pools pools_{*shared_};
  Mappings mappings_{*shared_};
  Sharing sharing_{*shared_};
  Placements placements_{*shared_};
  Streams streams_{*shared_};
  Graphs graphs_{*shared_, streams_};
  Work work_{*shared_};
};

}  // namespace uvmsim
