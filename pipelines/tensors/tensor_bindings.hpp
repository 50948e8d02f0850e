// Owns the tensors of one run by name: inputs, weights and outputs (Glow, PlaceholderBindings). Not
// thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "pipelines/tensors/resident_tensor.hpp"

namespace uvm {

class TensorBindings {
 public:
  // Throws std::invalid_argument if the name is taken.
  ResidentTensor& add(std::string name, TensorType type, HostAccess access = HostAccess::kError);
  // Throws std::out_of_range, which names the tensor, for an unknown name.
  ResidentTensor& at(std::string_view name);
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  std::size_t size() const { return tensors_.size(); }

  // Pins the host memory of all tensors for the device (Glow, allocatePinned).
  void allocate_pinned(const DeviceTransfers& runtime, int device);
  // Copies data that is only on a device to the host (Glow, Obtaining final outputs). Devices keep
  // their memory.
  void ensure_outputs_available();

  // Returns the sum over all tensors.
  TransferCounts transfers() const;

 private:
  std::map<std::string, std::unique_ptr<ResidentTensor>, std::less<>> tensors_;
};

}  // namespace uvm
