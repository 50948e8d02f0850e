// Advice, prefetch, discard and range attributes.
#include "sim/api/placement.hpp"
#include "sim/hip/common/visible_devices.hpp"
#include "sim/hip/common/xnack.hpp"
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

bool is_coarse_grain(hipMemoryAdvise advice) {
  return advice == hipMemAdviseSetCoarseGrain || advice == hipMemAdviseUnsetCoarseGrain;
}

// A device accepts memory from malloc only if its accesses can fault.
bool is_known(MemoryRange range) {
  return is_xnack_on() || machine().memory().find(range.address).has_value();
}

// Coarse grain concerns caches, which are not modelled. Integrated devices refuse this advice.
Status take_coarse_grain(MemoryRange range) {
  const bool accepted =
      machine().placements().accept(range) && !machine().profile().shares_host_memory();
  return accepted ? Status::kOk : Status::kInvalidValue;
}

hipError_t give_advice(MemoryRange range, hipMemoryAdvise advice, Location location) {
  if (const Status status = admit_managed_call(); status != Status::kOk) return finish(status);
  if (range.address == nullptr || range.size_bytes == 0 || !is_known(range))
    return fail(hipErrorInvalidValue);
  if (is_coarse_grain(advice)) return finish(take_coarse_grain(range));
  return finish(advise(range, advice, location));
}

hipError_t start_prefetch(MemoryRange range, Location location, hipStream_t stream) {
  if (kVersion >= kStrictCaptures) {
    if (const Status status = machine().graphs().admit_unsafe_call(); status != Status::kOk)
      return finish(status);
  }
  if (range.address == nullptr || range.size_bytes == 0) return fail(hipErrorInvalidValue);
  if (!is_known(range)) return fail(hipErrorNotSupported);
  return finish(prefetch(stream, range, location));
}

Location location_of(hipMemLocation location) {
  return {static_cast<LocationType>(location.type), location.id};
}

hipError_t discard(void** addresses, size_t* sizes, size_t count, unsigned long long flags,
                   hipStream_t stream) {
  if (!is_xnack_on()) return fail(hipErrorNotSupported);
  return finish(discard_batch({addresses, sizes, count, flags, stream}));
}

}  // namespace

RT_API hipMemAdvise(const void* address, size_t bytes, hipMemoryAdvise advice, int location) {
  RT_ENTER_DEVICE;
  (void)device;
  return give_advice({address, bytes}, advice, location_of_device(location));
}

RT_API hipMemAdvise_v2(const void* address, size_t bytes, hipMemoryAdvise advice,
                       hipMemLocation location) {
  RT_ENTER_DEVICE;
  (void)device;
  return give_advice({address, bytes}, advice, location_of(location));
}

RT_API hipMemPrefetchAsync(const void* address, size_t bytes, int location, hipStream_t stream) {
  RT_ENTER_DEVICE;
  (void)device;
  return start_prefetch({address, bytes}, location_of_device(location), stream);
}

RT_API hipMemPrefetchAsync_v2(const void* address, size_t bytes, hipMemLocation location,
                              unsigned flags, hipStream_t stream) {
  RT_ENTER_DEVICE;
  (void)device;
  if (flags != 0) return fail(hipErrorInvalidValue);
  return start_prefetch({address, bytes}, location_of(location), stream);
}

// Since HIP 7.14; the headers of this build may be older.
RT_API hipMemDiscardBatchAsync(void** addresses, size_t* sizes, size_t count,
                               unsigned long long flags, hipStream_t stream) {
  RT_ENTER_DEVICE;
  (void)device;
  return discard(addresses, sizes, count, flags, stream);
}

RT_API hipDrvMemDiscardBatchAsync(hipDeviceptr_t* addresses, size_t* sizes, size_t count,
                                  unsigned long long flags, hipStream_t stream) {
  RT_ENTER_DEVICE;
  (void)device;
  return discard(addresses, sizes, count, flags, stream);
}

RT_API hipMemRangeGetAttribute(void* out, size_t out_bytes, hipMemRangeAttribute attribute,
                               const void* address, size_t bytes) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(range_attribute(out, out_bytes, attribute, {address, bytes}));
}

RT_API hipMemRangeGetAttributes(void** outs, size_t* out_bytes, hipMemRangeAttribute* attributes,
                                size_t count, const void* address, size_t bytes) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(range_attributes(outs, out_bytes, attributes, count, {address, bytes}));
}
