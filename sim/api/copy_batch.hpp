// Batches of copies, in terms that the driver's and the runtime's interface share: their attribute
// structures have the same members.
#pragma once

#include <cstddef>

#include "sim/engine/machine.hpp"

namespace uvmsim::api {

struct CopyBatch {
  void* const* to;
  const void* const* from;
  const std::size_t* sizes;
  std::size_t count;
  StreamHandle stream;
};

// attributes[k] is for the copies from indexes[k] on.
struct CopyAttributes {
  const void* attributes;  // CUmemcpyAttributes or cudaMemcpyAttributes
  const std::size_t* indexes;
  std::size_t count;
};

// Refuses the legacy default stream, as documented. Runs the copies in the order of the list, until
// one fails; then `*failed` is its index, otherwise SIZE_MAX. Hints of attributes have no effect.
Status copy_batch(const CopyBatch& batch, const CopyAttributes& attributes, std::size_t* failed);

}  // namespace uvmsim::api
