#include "sim/torch/cpu_alias.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/intrusive_ptr.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "sim/torch/cpu_kernel_scope.hpp"
#include "sim/torch/extent.hpp"
#include "sim/torch/operator_values.hpp"

namespace uvm::sim_kernels {
namespace {

void release_storage(void* original) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(original));
}

// Returns memory that reads as zeros and takes no pages before it is written, because a storage may
// be much larger than the tensor in use.
c10::DataPtr zeroed_memory(std::size_t size_bytes) {
  struct Mapping {
    void* address;
    std::size_t size_bytes;
  };
  if (size_bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
  void* address = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "there is no memory in which a captured operator of ",
              size_bytes, " bytes could be tried out");
  const auto unmap = [](void* context) {
    const auto* mapping = static_cast<Mapping*>(context);
    munmap(mapping->address, mapping->size_bytes);
    delete mapping;
  };
  return {address, new Mapping{address, size_bytes}, unmap, c10::Device(c10::kCPU)};
}

// With these bits, kernels may leave conjugation or negation to later readers.
void carry_lazy_bits(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_conj() != from.is_conj()) to._set_conj(from.is_conj());
  if (to.is_neg() != from.is_neg()) to._set_neg(from.is_neg());
}

at::Tensor tensor_over(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  carry_lazy_bits(like, tensor);
  return tensor;
}

void set_sparse_parts(at::SparseTensorImpl& to, const at::SparseTensorImpl& like,
                      const at::Tensor& indices, const at::Tensor& values) {
  to.raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  to.set_indices_and_values_unsafe(indices, values);
  to.set_coalesced(like.coalesced());
}

at::Tensor sparse_over(const at::Tensor& indices, const at::Tensor& values, c10::DispatchKey key,
                       const at::Tensor& like) {
  at::Tensor tensor =
      at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  set_sparse_parts(sparse_parts(tensor), sparse_parts(like), indices, values);
  return tensor;
}

}  // namespace

c10::Storage CpuAliases::alias_storage(const c10::Storage& original) {
  for (const AliasedStorage& known : storages_) {
    if (known.original.unsafeGetStorageImpl() == original.unsafeGetStorageImpl())
      return known.alias;
  }
  c10::StorageImpl* impl = original.unsafeGetStorageImpl();
  c10::Storage alias(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), impl->nbytes(), alias_pointer(impl),
      c10::GetCPUAllocator(), impl->resizable()));
  storages_.push_back({original, alias, alias.data()});
  return alias;
}

c10::DataPtr CpuAliases::alias_pointer(c10::StorageImpl* original) const {
  const void* address = original->nbytes() ? original->data() : nullptr;
  if (use_ == Use::kGraph)
    return {address ? device_view(address) : nullptr, c10::Device(c10::kCPU)};
  if (is_try_out()) return zeroed_memory(original->nbytes());
  void* view = address ? launch_.view(address) : nullptr;
  // If a kernel keeps the alias in a result, the alias keeps the original alive.
  c10::raw::intrusive_ptr::incref(original);
  return {view, original, &release_storage, c10::Device(c10::kCPU)};
}

at::Tensor CpuAliases::alias(const at::Tensor& tensor) {
  for (const AliasedTensor& known : tensors_) {
    if (known.original.is_same(tensor)) return known.alias;
  }
  if (tensor.is_sparse()) return sparse_alias(tensor);
  at::Tensor alias = tensor_over(alias_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  tensors_.push_back({tensor, alias});
  fill(tensor, alias);
  return alias;
}

void CpuAliases::refuse_sparse_in_captures() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !launch_.is_capturing(),
      "CUDA graphs of sparse tensors are not available on the simulated device");
}

at::Tensor CpuAliases::sparse_alias(const at::Tensor& tensor) {
  refuse_sparse_in_captures();
  const at::SparseTensorImpl& parts = sparse_parts(tensor);
  const at::Tensor indices = alias(parts.indices());
  const at::Tensor values = alias(parts.values());
  const CpuKernelScope scope;
  at::Tensor result = sparse_over(indices, values, c10::DispatchKey::SparseCPU, tensor);
  tensors_.push_back({tensor, result});
  return result;
}

void CpuAliases::fill(const at::Tensor& original, at::Tensor& alias) const {
  const auto elements = static_cast<std::int64_t>(extent_bytes(original) / original.itemsize());
  if (elements == 0 || use_ != Use::kOnes) return;
  const CpuKernelScope scope;
  alias.as_strided({elements}, {1}, original.storage_offset()).fill_(1);
}

// The CPU kernel has reallocated the alias, so the original gets device memory of that size.
void CpuAliases::adopt_resized_storage(AliasedStorage& storage) {
  c10::StorageImpl* original = storage.original.unsafeGetStorageImpl();
  const std::size_t size_bytes = storage.alias.nbytes();
  c10::Allocator* allocator = original->allocator();
  if (!allocator) allocator = c10::cuda::CUDACachingAllocator::get();
  original->set_data_ptr_noswap(allocator->allocate(size_bytes));
  original->set_nbytes(size_bytes);
  if (size_bytes == 0) return;
  // Returns tensors of bytes over the whole storage, because all views of the storage share the
  // bytes.
  const auto whole = [&](const c10::Storage& over, c10::DispatchKey key) {
    at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(over), c10::DispatchKeySet(key), caffe2::TypeMeta::Make<std::uint8_t>());
    bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(size_bytes)});
    return bytes;
  };
  pending_.push_back({whole(storage.original, c10::DispatchKey::CUDA),
                      whole(storage.alias, c10::DispatchKey::CPU)});
}

void CpuAliases::write_back_resized() {
  for (AliasedStorage& storage : storages_) {
    if (storage.alias.data() != storage.view) adopt_resized_storage(storage);
  }
  for (const AliasedTensor& tensor : tensors_) {
    const at::Tensor& alias = tensor.alias;
    if (alias.is_sparse()) {
      write_back_sparse(tensor);
      continue;
    }
    carry_lazy_bits(alias, tensor.original);
    if (alias.sizes() == tensor.original.sizes() && alias.strides() == tensor.original.strides())
      continue;
    tensor.original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                                                 alias.storage_offset());
  }
}

// If kernels write to a sparse tensor, they replace its indices and values.
void CpuAliases::write_back_sparse(const AliasedTensor& tensor) {
  const at::SparseTensorImpl& written = sparse_parts(tensor.alias);
  at::SparseTensorImpl& original = sparse_parts(tensor.original);
  const at::Tensor indices = to_device(written.indices());
  const at::Tensor values = to_device(written.values());
  if (indices.is_same(original.indices()) && values.is_same(original.values()) &&
      written.coalesced() == original.coalesced() && written.sizes() == original.sizes())
    return;
  set_sparse_parts(original, written, indices, values);
}

at::Tensor CpuAliases::sparse_to_device(const at::Tensor& result) {
  refuse_sparse_in_captures();
  made_sparse_ = true;
  const at::SparseTensorImpl& parts = sparse_parts(result);
  return sparse_over(to_device(parts.indices()), to_device(parts.values()),
                     c10::DispatchKey::SparseCUDA, result);
}

at::Tensor CpuAliases::to_device(const at::Tensor& result) {
  if (!result.defined() || !result.is_cpu()) return result;
  for (const AliasedTensor& known : tensors_) {
    if (known.alias.is_same(result)) return known.original;
  }
  const char* unavailable = unavailable_kind_of(result);
  TORCH_CHECK_NOT_IMPLEMENTED(!unavailable, unavailable, kUnavailable);
  if (result.is_sparse()) return sparse_to_device(result);
  for (const AliasedStorage& known : storages_) {
    if (known.alias.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
      return tensor_over(known.original, c10::DispatchKey::CUDA, result);
    }
  }
  at::Tensor tensor(at::detail::empty_strided_cuda(result.sizes(), result.strides(),
                                                   result.scalar_type(), launch_.device()));
  carry_lazy_bits(result, tensor);
  pending_.push_back({tensor, result});
  return tensor;
}

bool CpuAliases::is_new(const at::Tensor& tensor) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const PendingCopy& copy) { return copy.destination.is_same(tensor); });
}

void CpuAliases::copy_results() {
  for (const PendingCopy& copy : pending_) launch_.touch(copy.destination, UVMSIM_WRITE);
  launch_.submit();
  for (const PendingCopy& copy : pending_) {
    const std::size_t size_bytes = extent_bytes(copy.source);
    if (size_bytes == 0 || is_try_out()) continue;
    std::memcpy(launch_.view(copy.destination.const_data_ptr()), copy.source.const_data_ptr(),
                size_bytes);
  }
  pending_.clear();
}

}  // namespace uvm::sim_kernels
