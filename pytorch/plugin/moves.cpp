// Moves of tensors between devices. Tensor.to, .cuda() and .cpu() all call `aten::_to_copy`. If
// only the device changes and the tensor is in a managed block, the result shares the block
// copy-on-write instead of copying it.
#include <utility>
#include <variant>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/conversion.hpp"
#include "pytorch/plugin/copy_reasons.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/forced_copy.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/shared_storage.hpp"
#include "pytorch/plugin/tensor_storage.hpp"

namespace uvm::torch_plugin {
namespace {

// Makes later work on the current stream of `after` wait for queued work on `before`'s.
void order_streams(c10::Device before, c10::Device after) {
  c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  c10::Event event(c10::kCUDA);
  event.record(guard.getStream(before));
  event.block(guard.getStream(after));
}

// As in torch, a result on the host is pinned if the caller does not wait for the bytes.
c10::Allocator* allocator_of_result(c10::Device device, bool non_blocking) {
  if (device.is_cpu() && non_blocking) return facades().pinned;
  return facades().of(device);
}

// To keep statistics current, each move updates the places of at most this many shared blocks.
constexpr std::size_t kBlocksPerMove = 8;

void move_or_throw(void* address, const MoveRequest& move) {
  try {
    allocator().move(address, move);
  } catch (const OutOfMemoryError& error) {
    facades().device->out_of_memory(error, static_cast<c10::DeviceIndex>(move.stream_device),
                                    move.size_bytes, static_cast<cudaStream_t>(move.stream),
                                    nullptr);
  }
  note_places_of_shared(kBlocksPerMove);
}

// Returns the moved tensor, or the reason why it must be copied.
std::variant<at::Tensor, CopyReason> moved(const at::Tensor& self, const TensorMove& request,
                                           bool non_blocking) {
  const c10::Device device = *request.device;
  const Sharing sharing = request.sharing;
  StorageRange range = range_of(self);
  if (self.is_cuda() && device.is_cuda()) order_streams(self.device(), device);
  MoveRequest move;
  move.source = place_of(self.device());
  move.destination = place_of(device);
  move.stream_device = device.is_cuda() ? device.index() : self.device().index();
  move.stream = current_stream(static_cast<c10::DeviceIndex>(move.stream_device));
  move.wait = !non_blocking;
  // Torch itself counts the storages over the block, and reports only the last release.
  move.held = false;
  move.keeps_source = true;
  move.size_bytes = range.size_bytes;
  // Share before the move: for an alias, share() may give the storage bytes of its own.
  const StorageOwner owner{device, allocator_of_result(device, non_blocking)};
  auto shared = share(self.storage(), range, owner, sharing);
  if (const auto* reason = std::get_if<CopyReason>(&shared)) return *reason;
  c10::Storage other = std::get<c10::Storage>(std::move(shared));
  {
    const PolicyScope policy;
    move_or_throw(const_cast<void*>(other.data()), move);
  }
  // Torch's copy would be complete here, so wait. For a move to the host, the allocator has waited.
  if (self.is_cpu() && move.wait) {
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
  }
  c10::DispatchKey key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(other), c10::DispatchKeySet(key), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides());
  // A dimension of one element may have any stride; a requested format determines it.
  const auto format = request.memory_format.value_or(c10::MemoryFormat::Preserve);
  if (format != c10::MemoryFormat::Preserve) {
    result.unsafeGetTensorImpl()->empty_tensor_restride(format);
  }
  // Share the version counter, so that autograd sees writes through either tensor.
  if (sharing == Sharing::kAlias && !self.is_inference() && !result.is_inference()) {
    result.unsafeGetTensorImpl()->set_version_counter(
        self.unsafeGetTensorImpl()->version_counter());
  }
  return result;
}

bool is_device_move(const at::Tensor& self, const std::optional<c10::Device>& device) {
  return device && device->type() != self.device().type() && is_host_or_cuda(*device) &&
         is_host_or_cuda(self.device());
}

bool between_devices(const at::Tensor& self, const std::optional<c10::Device>& device) {
  return device && device->is_cuda() && self.is_cuda() && device->has_index() &&
         *device != self.device();
}

at::Tensor to_copy(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                   std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> memory_format) {
  bool device_move = is_device_move(self, device);
  if (device_move && device->is_cuda()) {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    if (!device->has_index()) device = c10::Device(c10::kCUDA, c10::cuda::current_device());
  }
  CachingManagedAllocator* ours =
      device_move || between_devices(self, device) ? process_allocator() : nullptr;
  if (ours != nullptr) {
    const MoveMode mode = move_mode();
    Sharing sharing =
        mode == MoveMode::kAlias && !copy_is_forced() ? Sharing::kAlias : Sharing::kCopyOnWrite;
    TensorMove request{dtype, layout, device, pin_memory, memory_format, sharing};
    std::optional<CopyReason> reason =
        mode == MoveMode::kCopy ? CopyReason::kMode : reason_to_copy(self, request);
    if (!reason && is_early(storage_of(self))) {
      reason = convert(self, device->index());
      if (!reason) reason = reason_to_copy(self, request);
    }
    if (!reason) {
      auto result = moved(self, request, non_blocking);
      if (auto* tensor = std::get_if<at::Tensor>(&result)) return std::move(*tensor);
      reason = std::get<CopyReason>(result);
    }
    FrameworkBridge(*ours).note_copy(
        *reason, self.layout() == c10::kStrided ? self.numel() * self.itemsize() : 0);
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

}  // namespace
}  // namespace uvm::torch_plugin

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
}
