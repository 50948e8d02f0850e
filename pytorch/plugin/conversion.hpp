// Conversion of a CPU tensor that was made before CPU tensors could be managed, at its first move.
// Its bytes go into a managed block piece by piece. The old pages go back to the kernel behind each
// piece, so the tensor is never in memory twice. All tensors over the storage then have the new
// block, and the move shares it.
//
// No other thread of the host may use the tensor meanwhile: its address changes, and we do not see
// reads. Exports of pointers, and forks, wait until a conversion is over.
#pragma once

#include <optional>

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <uvmalloc/allocator/statistics.hpp>

namespace uvm::torch_plugin {

// From now on forks wait for conversions. Call it when the allocator is there, and before the first
// conversion. A fork that has begun does not run a handler that is registered meanwhile.
void hold_forks_during_conversions();

// The storage has such memory, and nobody shares it. A raw pointer to it may have left.
bool is_early(const c10::StorageImpl& storage);
bool is_early_and_exported(const c10::StorageImpl& storage);

// Makes the storage's memory managed, in the context of `device` where CPU tensors have had none
// yet. nullopt: it is managed now, also where another thread did it. Else nothing has changed, and
// a move copies for that reason.
std::optional<CopyReason> convert(c10::StorageImpl& storage, int device);

// A raw pointer leaves: the storage's memory is never converted. Returns false where it is not
// early (any more).
bool mark_early_exported(const c10::StorageImpl& storage);
bool mark_early_exported(const void* pointer);

}  // namespace uvm::torch_plugin
