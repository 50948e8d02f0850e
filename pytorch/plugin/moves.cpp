#include <uvmalloc/pytorch/plugin/moves.hpp>

#include <mutex>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>
#include <torch/version.h>

#include <uvmalloc/pytorch/plugin/export_hooks.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>

namespace uvm::torch_plugin {
namespace {

namespace cow = c10::impl::cow;

// Guards the change of a storage from sole owner to shared: two threads may move the same tensor.
std::mutex share_mutex;

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

bool strides_survive(const at::Tensor& self, c10::MemoryFormat format) {
  if (format == c10::MemoryFormat::Preserve) return self.is_non_overlapping_and_dense();
  return self.is_contiguous(format);
}

// From 2.13 on a storage is copied on its first write by a function of its own; before, by its kind
// of data pointer.
void copy_on_write(c10::StorageImpl& storage) {
#if TORCH_VERSION_MINOR >= 13
  if (!storage.has_materializer()) {
    storage.set_materializer([](c10::StorageImpl* written) {
      materialize(*written, [](void* opaque) {
        cow::materialize_cow(static_cast<c10::StorageImpl*>(opaque));
      });
    });
  }
#else
  (void)storage;
#endif
}

// Makes the storage's data pointer a counted one, if it is not yet.
void make_shareable(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (cow::is_cow_data_ptr(data)) return;
  void* address = data.get();
  c10::Device device = data.device();
  auto* context = new cow::COWDeleterContext(data.move_context());
  storage.set_data_ptr_noswap(c10::DataPtr(address, context, cow::cow_deleter, device));
  copy_on_write(storage);
}

// A second storage over the same block, on another device. Both copy when first written while the
// other lives.
c10::Storage shared_storage(c10::StorageImpl& storage, c10::Device device) {
  std::lock_guard lock(share_mutex);
  // A storage without an allocator (torch.load makes such) could not copy itself.
  if (storage.allocator() == nullptr) storage.set_allocator(facades().of(storage.device()));
  make_shareable(storage);
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  auto* context = data.cast_context<cow::COWDeleterContext>(cow::cow_deleter);
  context->increment_refcount();
  auto other = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(data.get(), context, cow::cow_deleter, device), facades().of(device),
      /*resizable=*/true);
  copy_on_write(*other);
  return c10::Storage(std::move(other));
}

at::Tensor moved(const at::Tensor& self, c10::Device device, bool non_blocking) {
  c10::StorageImpl& storage = storage_of(self);
  c10::DeviceIndex index = device.is_cuda() ? device.index() : self.device().index();
  CachingManagedAllocator::Move move;
  move.source = self.is_cuda() ? Place::device(index) : Place::host();
  move.destination = device.is_cuda() ? Place::device(index) : Place::host();
  move.stream_device = index;
  move.stream = c10::cuda::getCurrentCUDAStream(index).stream();
  move.wait = !non_blocking;
  // Torch counts the references itself, and tells us of the last one only.
  move.held = false;
  allocator().move(storage._mutable_data_ptr_no_checks().get(), move);
  c10::DispatchKey key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      shared_storage(storage, device), c10::DispatchKeySet(key), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides());
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
    MoveRequest request{dtype, layout, device, pin_memory, memory_format};
    std::optional<CopyReason> reason = reason_to_copy(self, request);
    if (!reason) return moved(self, *device, non_blocking);
    ours->note_copy(*reason, self.layout() == c10::kStrided ? self.numel() * self.itemsize() : 0);
    // Stock stages pageable memory, so its caller may write to the source as soon as the call
    // returns. A copy from managed memory would still be reading it.
    if (self.is_cpu() && self.layout() == c10::kStrided && self.has_storage()) {
      auto block = ours->find(self.storage().data());
      if (block && block->facade == Facade::kHost) non_blocking = false;
    }
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

// Only blocks of the pinned facade are pinned: torch would ask the driver, for which managed memory
// is not.
bool is_pinned(const at::Tensor& self, std::optional<c10::Device> device) {
  if (CachingManagedAllocator* ours = process_allocator(); ours != nullptr && self.has_storage()) {
    if (auto block = ours->find(self.storage().data())) return block->facade == Facade::kPinned;
  }
  return at::native::is_pinned(self, device);
}

bool is_managed(const at::Tensor& self) {
  CachingManagedAllocator* ours = process_allocator();
  return ours != nullptr && self.has_storage() && ours->find(self.storage().data()).has_value();
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
  if (self.is_cuda() && request.device->is_cuda()) return CopyReason::kDeviceToDevice;
  if (configuration.move == MoveMode::kCopy || configuration.policy == Policy::kOff)
    return CopyReason::kMode;
  if (self.layout() != c10::kStrided || !self.has_storage() || self.is_conj() || self.is_neg() ||
      self.is_quantized() || is_named(self) ||
      !strides_survive(self, request.memory_format.value_or(c10::MemoryFormat::Preserve))) {
    return CopyReason::kLayout;
  }
  c10::StorageImpl& storage = storage_of(self);
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  auto block = allocator().find(data.get());
  if (!block || !block->movable) {
    bool small =
        storage.nbytes() < configuration.host_threshold_bytes || (block && !block->movable);
    return small ? CopyReason::kSmallBlock : CopyReason::kForeign;
  }
  bool ours = cow::is_cow_data_ptr(data) || data.get() == data.get_context();
  if (!ours || block->base != data.get()) return CopyReason::kForeign;
  if (self.storage_offset() != 0 ||
      storage.nbytes() != static_cast<size_t>(self.numel()) * self.itemsize()) {
    return CopyReason::kPartialStorage;
  }
  if (block->exported) return CopyReason::kExported;
  if (request.device->is_cuda() &&
      request.device->index() >= allocator().runtime().device_count()) {
    return CopyReason::kForeign;  // torch's own error for a device that does not exist
  }
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
    return CopyReason::kCapturing;
  }
  return std::nullopt;
}

}  // namespace uvm::torch_plugin

TORCH_LIBRARY(uvmalloc, library) {
  library.def("is_managed(Tensor self) -> bool");
  library.def("report() -> str", &uvm::torch_plugin::report);
  library.def("check_invariants() -> ()", &uvm::torch_plugin::check_invariants);
}

TORCH_LIBRARY_IMPL(uvmalloc, CPU, library) {
  library.impl("is_managed", &uvm::torch_plugin::is_managed);
}
TORCH_LIBRARY_IMPL(uvmalloc, CUDA, library) {
  library.impl("is_managed", &uvm::torch_plugin::is_managed);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
  library.impl("is_pinned", &uvm::torch_plugin::is_pinned);
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_to_copy", &uvm::torch_plugin::to_copy);
}
