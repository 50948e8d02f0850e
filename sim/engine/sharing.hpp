// Device memory shared by processes: the importer maps the pages of the exporter's memfd.
#pragma once

#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Sharing {
 public:
  explicit Sharing(SharedState& shared) : shared_(shared) {}

  // Describes the allocation that holds `address`, so that another process can open it while this
  // process lives. The memory is charged only to its owner. The other process sees the owner's
  // changes.
  Status export_memory(const void* address, SharedMemory* out);
  // Opening an allocation again returns the same address; each opening needs its own
  // close_imported(). Returns kInvalidContext for memory of this process, kNotFound if the other
  // process has ended.
  Status import_memory(int device, const SharedMemory& shared, void** out);
  Status close_imported(void* address);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
