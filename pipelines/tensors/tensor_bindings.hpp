// The tensors of one run by name, as a program binds them to its inputs, weights and outputs (Glow,
// PlaceholderBindings). Owns them. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "pipelines/tensors/resident_tensor.hpp"

namespace uvm {

class TensorBindings {
 public:
  // std::invalid_argument if the name is taken.
  ResidentTensor& add(std::string name, TensorType type, HostAccess access = HostAccess::kError);
  // std::out_of_range for an unknown name; the message has it.
  ResidentTensor& at(std::string_view name);
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  std::size_t size() const { return tensors_.size(); }

  // Host memory of all tensors in the device's own format (Glow, allocatePinned).
  void allocate_pinned(const DeviceTransfers& runtime, int device);
  // Brings all data to the host that is only on a device (Glow, Obtaining final outputs). Devices
  // keep their memory.
  void ensure_outputs_available();

  // Over all tensors.
  TransferCounts transfers() const;

 private:
  std::map<std::string, std::unique_ptr<ResidentTensor>, std::less<>> tensors_;
};

}  // namespace uvm
