// Conversion of a CPU tensor that was made before CPU tensors could be managed, at its first move.
// Its bytes go into a managed block piece by piece. The old pages go back to the kernel behind each
// piece, so the tensor is never in memory twice. The move then shares the block.
//
// A move only reads its source, and other threads may be reading it too. So a tensor is converted
// only if nobody else can: this thread is Python's only one, and the tensor has no other owner. Any
// other tensor is copied.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <uvmalloc/statistics.hpp>

namespace uvm::torch_plugin {

// The storage has such memory, and nobody shares it. A raw pointer to it may have left.
bool is_early(const c10::StorageImpl& storage);
bool is_early_and_exported(const c10::StorageImpl& storage);

// Makes the memory of an early tensor managed, in the context of `device` if CPU tensors have had
// none yet. nullopt: it is managed now. Else nothing has changed, and a move copies for that
// reason.
std::optional<CopyReason> convert(const at::Tensor& tensor, int device);

// A raw pointer leaves: the memory that it points to is never converted. Returns false if that is
// not early.
bool mark_early_exported(const void* pointer);

}  // namespace uvm::torch_plugin
