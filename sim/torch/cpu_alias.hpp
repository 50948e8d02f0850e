// CUDA tensors retagged as CPU tensors over the same bytes, for the duration of one operator.
// Afterwards the results of the CPU kernel become CUDA tensors. Tensors that share a storage get
// aliases that share one, so that the CPU kernels' overlap checks see what CUDA's checks would.
// Sparse tensors (COO) get a sparse alias over the aliases of their indices and values.
// Lives on the stack of one call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

#include "sim/torch/launch.hpp"

namespace uvm::sim_kernels {

class CpuAliases {
 public:
  // What the aliases are used for:
  enum class Use {
    kThisCall,  // one call, during which they keep the originals alive
    kGraph,     // the launches of a graph, which owns the memory
    // a captured call, which must not read the program's memory, because this memory is undefined
    // until earlier captured work has been launched. So the aliases have their own memory:
    kZeros,
    kOnes
  };

  explicit CpuAliases(Launch& launch, Use use = Use::kThisCall) : launch_(launch), use_(use) {}

  // Returns the CPU tensor over the bytes of `tensor`, a strided or sparse CUDA tensor; always the
  // same CPU tensor for the same tensor. Copy-on-write storages of written tensors must be
  // materialised before this call, because materialising moves their bytes.
  at::Tensor alias(const at::Tensor& tensor);

  // Call this after the operator. Gives the originals the sizes, strides and memory of their
  // resized aliases, and the lazy bits.
  void write_back_resized();

  // Returns the CUDA tensor for a result: for an alias the original, for a tensor over an
  // original's bytes a view of the original's storage. Otherwise returns a new tensor, and
  // copy_results() copies the bytes.
  at::Tensor to_device(const at::Tensor& result);

  // Returns whether to_device() created a sparse tensor, which means that the host knows how many
  // values the tensor has.
  bool made_sparse() const { return made_sparse_; }

  // Returns whether to_device() created `tensor`; valid until copy_results().
  bool is_new(const at::Tensor& tensor) const;

  // Reports writes to the memory that write_back_resized() and to_device() allocated. Also fills
  // this memory, unless the operator is being captured.
  void copy_results();

 private:
  struct AliasedStorage {
    c10::Storage original;
    c10::Storage alias;
    const void* view;  // bytes of the original when the alias was made
  };
  struct AliasedTensor {
    at::Tensor original;
    at::Tensor alias;
  };
  struct PendingCopy {
    at::Tensor destination;  // CUDA
    at::Tensor source;       // CPU, same sizes and strides
  };

  c10::Storage alias_storage(const c10::Storage& original);
  c10::DataPtr alias_pointer(c10::StorageImpl* original) const;
  bool is_try_out() const { return use_ != Use::kThisCall && use_ != Use::kGraph; }
  void fill(const at::Tensor& original, at::Tensor& alias) const;
  void adopt_resized_storage(AliasedStorage& storage);
  at::Tensor sparse_alias(const at::Tensor& tensor);
  at::Tensor sparse_to_device(const at::Tensor& result);
  void write_back_sparse(const AliasedTensor& tensor);
  void refuse_sparse_in_captures() const;

  Launch& launch_;
  Use use_;
  std::vector<AliasedStorage> storages_;
  std::vector<AliasedTensor> tensors_;
  std::vector<PendingCopy> pending_;
  bool made_sparse_ = false;
};

}  // namespace uvm::sim_kernels
