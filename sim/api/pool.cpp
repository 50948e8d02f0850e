#include "sim/api/pool.hpp"

#include <cuda.h>

#include <cstdint>

namespace uvmsim::api {

namespace {

Status write_value(void* out, std::uint64_t value) {
  *static_cast<std::uint64_t*>(out) = value;
  return Status::kOk;
}

}  // namespace

Status admit_pool_call(CallRecord& call, const std::optional<Stream>& stream) {
  if (!stream) return Status::kInvalidHandle;
  if (stream->capture == nullptr) return Status::kOk;
  call.not_implemented();
  return Status::kNotSupported;
}

Status get_pool_attribute(PoolHandle handle, int attribute, void* out) {
  const auto pool = Machine::instance().pools().find(handle);
  if (!pool || out == nullptr) return Status::kInvalidValue;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(out) = 1;
      return Status::kOk;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return write_value(out, pool->release_threshold_bytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return write_value(out, pool->used_bytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return write_value(out, pool->used_high_bytes);
    default:
      return Status::kInvalidValue;
  }
}

Status set_pool_attribute(PoolHandle handle, int attribute, const void* value) {
  if (value == nullptr) return Status::kInvalidValue;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return Machine::instance().pools().find(handle) ? Status::kOk : Status::kInvalidValue;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return Machine::instance().pools().set_release_threshold(
          handle, *static_cast<const std::uint64_t*>(value));
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      // A high-water mark can only be reset.
      if (*static_cast<const std::uint64_t*>(value) != 0) return Status::kInvalidValue;
      return Machine::instance().pools().reset_high(handle);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace uvmsim::api
