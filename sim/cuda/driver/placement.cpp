// Advice, prefetch, discard and range attributes, in the forms of CUDA 12 (a device ordinal) and
// CUDA 13 (a location).
#include "sim/api/placement.hpp"

#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

Location location_of(CUmemLocation location) {
  return {static_cast<LocationType>(location.type), location.id};
}

// CUdeviceptr is an integer as wide as a pointer.
Batch batch_of(CUdeviceptr* addresses, size_t* sizes, size_t count, unsigned long long flags,
               CUstream stream) {
  return {reinterpret_cast<void* const*>(addresses), sizes, count, flags, stream};
}

}  // namespace

CU_API cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice location) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(advise({as_pointer(address), bytes}, advice, location_of_device(location)));
}

CU_API cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                      CUmemLocation location) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(advise({as_pointer(address), bytes}, advice, location_of(location)));
}

CU_API cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice location, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(prefetch(stream, {as_pointer(address), bytes}, location_of_device(location)));
}

CU_API cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                             unsigned flags, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return finish(prefetch(stream, {as_pointer(address), bytes}, location_of(location)));
}

CU_API cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                               CUmemLocation* locations, size_t* indexes, size_t location_count,
                               unsigned long long flags, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(prefetch_batch(batch_of(addresses, sizes, count, flags, stream),
                               {locations, indexes, location_count}));
}

CU_API cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                              unsigned long long flags, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(discard_batch(batch_of(addresses, sizes, count, flags, stream)));
}

CU_API cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                         CUmemLocation* locations, size_t* indexes,
                                         size_t location_count, unsigned long long flags,
                                         CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(discard_and_prefetch_batch(batch_of(addresses, sizes, count, flags, stream),
                                           {locations, indexes, location_count}));
}

CU_API cuMemRangeGetAttribute(void* out, size_t out_bytes, CUmem_range_attribute attribute,
                              CUdeviceptr address, size_t bytes) {
  CU_ENTER;
  return finish(range_attribute(out, out_bytes, attribute, {as_pointer(address), bytes}));
}

CU_API cuMemRangeGetAttributes(void** outs, size_t* out_bytes, CUmem_range_attribute* attributes,
                               size_t count, CUdeviceptr address, size_t bytes) {
  CU_ENTER;
  return finish(range_attributes(outs, out_bytes, attributes, count, {as_pointer(address), bytes}));
}

CU_API cuMemGetLocationInfo(CUdeviceptr address, size_t bytes, size_t summary_bytes,
                            size_t sample_bytes, CUmemLocation* out) {
  CU_ENTER;
  return finish(location_info({as_pointer(address), bytes}, summary_bytes, sample_bytes, out));
}
