// Advice, prefetch, discard and range attributes.
#include "sim/api/placement.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

Location location_of(cudaMemLocation location) {
  return {static_cast<LocationType>(location.type), location.id};
}

}  // namespace

RT_API cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice,
                     cudaMemLocation location) {
  RT_ENTER_DEVICE;
  return finish(advise({address, bytes}, advice, location_of(location)));
}

RT_API cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation location,
                            unsigned flags, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  if (flags != 0) return fail(cudaErrorInvalidValue);
  return finish(prefetch(stream, {address, bytes}, location_of(location)));
}

RT_API cudaMemPrefetchBatchAsync(void** addresses, size_t* sizes, size_t count,
                                 cudaMemLocation* locations, size_t* indexes, size_t location_count,
                                 unsigned long long flags, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(prefetch_batch({addresses, sizes, count, flags, stream},
                               {locations, indexes, location_count}));
}

RT_API cudaMemDiscardBatchAsync(void** addresses, size_t* sizes, size_t count,
                                unsigned long long flags, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(discard_batch({addresses, sizes, count, flags, stream}));
}

RT_API cudaMemDiscardAndPrefetchBatchAsync(void** addresses, size_t* sizes, size_t count,
                                           cudaMemLocation* locations, size_t* indexes,
                                           size_t location_count, unsigned long long flags,
                                           cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(discard_and_prefetch_batch({addresses, sizes, count, flags, stream},
                                           {locations, indexes, location_count}));
}

RT_API cudaMemRangeGetAttribute(void* out, size_t out_bytes, cudaMemRangeAttribute attribute,
                                const void* address, size_t bytes) {
  RT_ENTER_DEVICE;
  return finish(range_attribute(out, out_bytes, attribute, {address, bytes}));
}

RT_API cudaMemRangeGetAttributes(void** outs, size_t* out_bytes, cudaMemRangeAttribute* attributes,
                                 size_t count, const void* address, size_t bytes) {
  RT_ENTER_DEVICE;
  return finish(range_attributes(outs, out_bytes, attributes, count, {address, bytes}));
}
