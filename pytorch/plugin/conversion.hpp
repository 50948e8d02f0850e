// Converts a CPU tensor that was allocated before CPU tensors could be managed, at the tensor's
// first move (Note "Conversion of host memory"). Its bytes are copied to a managed block piece by
// piece. After each piece, the old pages return to the kernel, so at most one piece is in memory
// twice. The move then shares the block.
//
// A move only reads its source, so other threads may read the source at the same time. A tensor is
// converted only if no other thread can read it: this thread is Python's only thread, and the
// tensor has no other owner. Other tensors are copied.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <uvmalloc/statistics.hpp>

namespace uvm::torch_plugin {

// is_early(): whether the storage owns a block of EarlyBlocks. is_early_and_exported(): whether, in
// addition, a raw pointer to the block has left torch.
bool is_early(const c10::StorageImpl& storage);
bool is_early_and_exported(const c10::StorageImpl& storage);

// Moves an early tensor's bytes to managed memory, in the context of `device` if CPU tensors have
// no device yet. Returns nullopt if the tensor is managed now. Otherwise nothing has changed, and
// the caller must copy for the returned reason.
std::optional<CopyReason> convert(const at::Tensor& tensor, int device);

// Call it when a raw pointer leaves torch: the memory behind that pointer is never converted.
// Returns false if malloc did not serve that memory before uvmalloc was active.
bool mark_early_exported(const void* pointer);

}  // namespace uvm::torch_plugin
