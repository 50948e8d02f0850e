// Green contexts, and the parts of a device (groups of multiprocessors) that they consist of. The
// driver and the runtime (CUDA 13.1 and later) have calls for the same objects. A part does not
// affect costs.
//
// Destroying a green context destroys its streams ("detached-streams" in sim/lacks.md).
#pragma once

#include <cuda.h>

#include "sim/engine/status.hpp"

namespace uvmsim::cuda {

// Gets all multiprocessors of a device. `type` must be CU_DEV_RESOURCE_TYPE_SM, otherwise returns
// kInvalidValue.
Status whole_device(int device, int type, CUdevResource* out);
// Splits `input` into groups of at least `least` multiprocessors, as documented for
// cuDevSmResourceSplitByCount.
Status split_by_count(CUdevResource* groups, unsigned* count, const CUdevResource* input,
                      CUdevResource* rest, unsigned least);
// Makes a descriptor of one part. The descriptor lives until the process ends, as in CUDA.
Status describe(const CUdevResource* parts, unsigned count, CUdevResourceDesc* out);

// The handle of a green context is also the handle of its ordinary context. A green context retains
// the primary context.
Status create_green_context(int device, CUdevResourceDesc description, void** out);
Status destroy_green_context(void* handle);
// Returns the context's number; kNoContext if the handle is not a green context.
int green_context_of(void* handle);
// Gets the part of the device that belongs to the context.
Status part_of(void* handle, int type, CUdevResource* out);
Status create_green_stream(void* handle, unsigned flags, int priority, void** out);

}  // namespace uvmsim::cuda
