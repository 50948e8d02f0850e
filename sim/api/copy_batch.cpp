#include "sim/api/copy_batch.hpp"

#include <cuda.h>

#include <cstdint>
#include <cstring>

#include "sim/engine/thread_context.hpp"

namespace uvmsim::api {
namespace {

bool accept_order(const void* attributes, std::size_t index) {
  CUmemcpyAttributes read{};
  std::memcpy(&read, static_cast<const CUmemcpyAttributes*>(attributes) + index, sizeof read);
  return read.srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
         read.srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

bool accept(const CopyBatch& batch, const CopyAttributes& given) {
  if (batch.to == nullptr || batch.from == nullptr || batch.sizes == nullptr || batch.count == 0)
    return false;
  if (batch.stream == nullptr || batch.stream == CU_STREAM_LEGACY) return false;
  if (given.attributes == nullptr || given.indexes == nullptr || given.count == 0 ||
      given.count > batch.count || given.indexes[0] != 0) {
    return false;
  }
  for (std::size_t i = 0; i < given.count; ++i) {
    if (i > 0 && given.indexes[i] <= given.indexes[i - 1]) return false;
    if (given.indexes[i] >= batch.count || !accept_order(given.attributes, i)) return false;
  }
  return true;
}

}  // namespace

Status copy_batch(const CopyBatch& batch, const CopyAttributes& attributes, std::size_t* failed) {
  *failed = SIZE_MAX;
  if (!accept(batch, attributes)) return Status::kInvalidValue;
  const int device = ThreadContext::current().device();
  for (std::size_t i = 0; i < batch.count; ++i) {
    const Copy copy{.to = batch.to[i], .from = batch.from[i], .width_bytes = batch.sizes[i]};
    const Status status = Machine::instance().work().copy(device, batch.stream, copy, Wait::kNo);
    if (status == Status::kOk) continue;
    *failed = i;
    return status;
  }
  return Status::kOk;
}

}  // namespace uvmsim::api
