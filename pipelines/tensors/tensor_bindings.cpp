#include "pipelines/tensors/tensor_bindings.hpp"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {

ResidentTensor& TensorBindings::add(std::string name, TensorType type, HostAccess access) {
  if (contains(name)) {
    throw std::invalid_argument(fmt::format("a tensor '{}' is bound already", name));
  }
  auto tensor = std::make_unique<ResidentTensor>(name, std::move(type), access);
  return *tensors_.emplace(std::move(name), std::move(tensor)).first->second;
}

ResidentTensor& TensorBindings::at(std::string_view name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw std::out_of_range(fmt::format("no tensor '{}' is bound", name));
  }
  return *found->second;
}

void TensorBindings::allocate_pinned(const DeviceTransfers& runtime, int device) {
  for (auto& [name, tensor] : tensors_) tensor->allocate_pinned(runtime, device);
}

void TensorBindings::ensure_outputs_available() {
  for (auto& [name, tensor] : tensors_) {
    if (tensor->is_device_resident()) tensor->transfer_from_device(false);
  }
}

TransferCounts TensorBindings::transfers() const {
  TransferCounts all;
  for (const auto& [name, tensor] : tensors_) {
    all.to_device += tensor->transfers().to_device;
    all.to_host += tensor->transfers().to_host;
    all.between_devices += tensor->transfers().between_devices;
  }
  return all;
}

}  // namespace uvm
