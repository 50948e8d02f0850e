// Attributes of stream-ordered pools; CUmemPool_attribute and cudaMemPoolAttr have the same
// numbers.
#pragma once

#include <uvmalloc/sim/engine/machine.hpp>

namespace uvmsim::cuda {

Status get_pool_attribute(PoolHandle pool, int attribute, void* out);
Status set_pool_attribute(PoolHandle pool, int attribute, const void* value);

}  // namespace uvmsim::cuda
