#include <uvmalloc/pytorch/plugin/moves.hpp>

#include <cstdint>
#include <utility>
#include <variant>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <uvmalloc/pytorch/plugin/conversion.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/forced_copy.hpp>
#include <uvmalloc/pytorch/plugin/region.hpp>
#include <uvmalloc/pytorch/plugin/shared_storage.hpp>

namespace uvm::torch_plugin {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

bool is_host_or_cuda(c10::Device device) {
  return device.is_cpu() || device.is_cuda();
}

// Torch has had no named tensors since 2.15.
template <class Tensor>
bool is_named(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  return false;
}

// A copy of a view with gaps has none; the same memory keeps them.
bool strides_survive(const at::Tensor& self, const MoveRequest& request) {
  const auto format = request.memory_format.value_or(c10::MemoryFormat::Preserve);
  if (format != c10::MemoryFormat::Preserve) return self.is_contiguous(format);
  return request.sharing == Sharing::kAlias || self.is_non_overlapping_and_dense();
}

// What the tensor's elements cover of its storage, from the first to the last.
StorageRange range_of(const at::Tensor& self) {
  return {static_cast<size_t>(self.storage_offset()) * self.itemsize(),
          at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize())};
}

bool covers_storage(const at::Tensor& self) {
  return self.storage_offset() == 0 && self.storage().nbytes() == range_of(self).size_bytes;
}

// Work that the current stream of one device has been given comes before that of the other's.
void order_streams(c10::Device before, c10::Device after) {
  c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  c10::Event event(c10::kCUDA);
  event.record(guard.getStream(before));
  event.block(guard.getStream(after));
}

Place place_of(c10::Device device) {
  return device.is_cuda() ? Place::device(device.index()) : Place::host();
}

// As stock: pinned where the caller does not wait for the bytes.
c10::Allocator* allocator_of_result(c10::Device device, bool non_blocking) {
  if (device.is_cpu() && non_blocking) return facades().pinned;
  return facades().of(device);
}

// The moved tensor, or why it must be copied.
std::variant<at::Tensor, CopyReason> moved(const at::Tensor& self, const MoveRequest& request,
                                           bool non_blocking) {
  const c10::Device device = *request.device;
  const Sharing sharing = request.sharing;
  StorageRange range = range_of(self);
  if (self.is_cuda() && device.is_cuda()) order_streams(self.device(), device);
  CachingManagedAllocator::Move move;
  move.source = place_of(self.device());
  move.destination = place_of(device);
  move.stream_device = device.is_cuda() ? device.index() : self.device().index();
  move.stream = current_stream(static_cast<c10::DeviceIndex>(move.stream_device));
  move.wait = !non_blocking;
  // Torch counts the references itself, and tells us of the last one only.
  move.held = false;
  move.size_bytes = range.size_bytes;
  // An alias must be made before: it may give the storage bytes of its own.
  const StorageOwner owner{device, allocator_of_result(device, non_blocking)};
  auto shared = share(self.storage(), range, owner, sharing);
  if (const auto* reason = std::get_if<CopyReason>(&shared)) return *reason;
  c10::Storage other = std::get<c10::Storage>(std::move(shared));
  {
    const PolicyScope policy;
    allocator().move(const_cast<void*>(other.data()), move);
  }
  c10::DispatchKey key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(other), c10::DispatchKeySet(key), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides());
  // Dimensions of one element may have any stride; a format that was asked for says which.
  const auto format = request.memory_format.value_or(c10::MemoryFormat::Preserve);
  if (format != c10::MemoryFormat::Preserve) {
    result.unsafeGetTensorImpl()->empty_tensor_restride(format);
  }
  // Autograd then knows of writes through either.
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
    MoveRequest request{dtype, layout, device, pin_memory, memory_format, sharing};
    std::optional<CopyReason> reason =
        mode == MoveMode::kCopy ? CopyReason::kMode : reason_to_copy(self, request);
    if (!reason && is_early(storage_of(self))) {
      reason = convert(storage_of(self), device->index());
      if (!reason) reason = reason_to_copy(self, request);
    }
    if (!reason) {
      auto result = moved(self, request, non_blocking);
      if (auto* tensor = std::get_if<at::Tensor>(&result)) return std::move(*tensor);
      reason = std::get<CopyReason>(result);
    }
    ours->note_copy(*reason, self.layout() == c10::kStrided ? self.numel() * self.itemsize() : 0);
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

// Torch asks the driver, for which managed memory is not pinned. The storage decides, because a
// pinned storage and one that is not may share a block. A storage without an allocator of ours
// (numpy's, for example) is over memory that has an owner elsewhere: the block decides. The driver
// knows what the program has registered.
bool is_pinned(const at::Tensor& self, std::optional<c10::Device> device) {
  if (CachingManagedAllocator* ours = process_allocator(); ours != nullptr && self.has_storage()) {
    if (const auto block = ours->find(self.storage().data()); block && block->live) {
      const c10::Allocator* made_by = storage_of(self).allocator();
      if (made_by == facades().pinned) return true;
      if (made_by != facades().host && block->pinned) return true;
    }
  }
  return at::native::is_pinned(self, device);
}

bool is_managed(const at::Tensor& self) {
  CachingManagedAllocator* ours = process_allocator();
  return ours != nullptr && self.has_storage() &&
         ours->find(storage_of(self)._mutable_data_ptr_no_checks().get()).has_value();
}

// Whether a move of the tensor's device needs no copy by what its memory is, now or after a
// conversion.
bool can_move(const at::Tensor& self) {
  if (process_allocator() == nullptr && !is_framework_enabled()) return false;
  return self.has_storage() && (is_managed(self) || (is_early(storage_of(self)) &&
                                                     !is_early_and_exported(storage_of(self))));
}

// Why a view of a part must be copied. Stock aligns its copies, and kernels choose how they compute
// by alignment.
std::optional<CopyReason> reason_to_copy_part(const at::Tensor& self, const MoveRequest& request) {
  constexpr size_t kHostAlignment = 64;
  constexpr size_t kDeviceAlignment = 512;
  if (self.numel() == 0) return CopyReason::kSmallBlock;
  if (request.sharing == Sharing::kAlias) return std::nullopt;
  if (!kPartsCanBeShared) return CopyReason::kPartialStorage;
  StorageRange range = range_of(self);
  if (range.size_bytes < allocator().configuration().host_threshold_bytes)
    return CopyReason::kSmallBlock;
  size_t alignment = request.device->is_cuda() ? kDeviceAlignment : kHostAlignment;
  auto address = reinterpret_cast<std::uintptr_t>(self.const_data_ptr());
  return address % alignment != 0 ? std::optional(CopyReason::kPartialStorage) : std::nullopt;
}

// Copies of a tensor, differentiable as such.
at::Tensor manage_memory(const at::Tensor& self) {
  if (is_managed(self)) return self;
  TORCH_CHECK(self.layout() == c10::kStrided, "manage_memory: the tensor is ", self.layout(),
              "; accepted: strided tensors");
  TORCH_CHECK(is_host_or_cuda(self.device()), "manage_memory: the tensor is on ", self.device(),
              "; accepted: cpu, cuda");
  const Activation& activation = activate_process_allocator();
  const bool is_child = activation.allocator != nullptr && activation.allocator->in_forked_child();
  TORCH_CHECK(activation.allocator != nullptr && !is_child,
              "manage_memory: unified memory is not enabled: ",
              is_child ? "this is a forked child" : activation.reason);
  const MemoryScope scope(/*managed=*/true);
  return self.clone();
}

at::Tensor unmanage_memory(const at::Tensor& self) {
  if (!is_managed(self)) return self;
  const MemoryScope scope(/*managed=*/false);
  return self.clone();
}

// The current stream is being captured. Asking torch for that makes a context on its device.
bool is_capturing() {
  return allocator().runtime().has_context(c10::cuda::current_device()) &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

std::string report() {
  return report_json();
}

void check_invariants() {
  if (CachingManagedAllocator* ours = process_allocator()) ours->check_invariants();
}

}  // namespace

std::optional<CopyReason> reason_to_copy(const at::Tensor& self, const MoveRequest& request) {
  const Configuration& configuration = allocator().configuration();
  bool converts = (request.dtype && *request.dtype != self.scalar_type()) ||
                  (request.layout && *request.layout != c10::kStrided) ||
                  request.pin_memory.value_or(false);
  if (converts) return CopyReason::kConversion;
  if (effective_policy() == Policy::kOff) return CopyReason::kMode;
  if (self.layout() != c10::kStrided || !self.has_storage() || self.is_conj() || self.is_neg() ||
      self.is_quantized() || is_named(self) || !strides_survive(self, request)) {
    return CopyReason::kLayout;
  }
  c10::StorageImpl& storage = storage_of(self);
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  // Memory that a conversion makes movable first.
  const bool early = is_early(storage);
  const auto block = early ? std::nullopt : allocator().find(data.get());
  // A small block shares its pages with others, which do not move with it. Copying it costs less
  // than its pages going to and fro; but whoever asks for the same memory gets it.
  bool alias = request.sharing == Sharing::kAlias;
  if (!early && (!block || (!block->movable && !alias))) {
    bool small = storage.nbytes() < configuration.host_threshold_bytes || block;
    return small ? CopyReason::kSmallBlock : CopyReason::kForeign;
  }
  if (!covers_storage(self)) {
    if (std::optional<CopyReason> reason = reason_to_copy_part(self, request)) return reason;
  }
  if (const auto reason = reason_not_to_share(storage, range_of(self), request.sharing)) {
    return reason;
  }
  // Its memory would be gone.
  if (early && is_early_and_exported(storage)) return CopyReason::kExported;
  if (request.device->is_cuda() &&
      request.device->index() >= allocator().runtime().device_count()) {
    return CopyReason::kForeign;  // torch's own error for a device that does not exist
  }
  if (is_capturing()) return CopyReason::kCapturing;
  return std::nullopt;
}

}  // namespace uvm::torch_plugin

TORCH_LIBRARY(uvmalloc, library) {
  library.def("is_managed(Tensor self) -> bool", &uvm::torch_plugin::is_managed);
  library.def("can_move(Tensor self) -> bool", &uvm::torch_plugin::can_move);
  library.def("manage_memory(Tensor(a) self) -> Tensor(a)", &uvm::torch_plugin::manage_memory);
  library.def("unmanage_memory(Tensor(a) self) -> Tensor(a)", &uvm::torch_plugin::unmanage_memory);
  library.def("report() -> str", &uvm::torch_plugin::report);
  library.def("check_invariants() -> ()", &uvm::torch_plugin::check_invariants);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
  library.impl("is_pinned", &uvm::torch_plugin::is_pinned);
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
}
