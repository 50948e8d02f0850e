// Advice, prefetch, discard and range attributes in terms that the interfaces of CUDA and HIP
// share: their enumerations have the same numbers and their location structures the same members.
#pragma once

#include <cstddef>

#include "sim/engine/machine.hpp"

namespace uvmsim::api {

enum class LocationType { kNowhere = 0, kGpu = 1, kCpu = 2, kCpuNode = 3, kCurrentCpuNode = 4 };

struct Location {
  LocationType type;
  int id;
};

// Converts the interfaces' old form of a location: a device ordinal, or -1 for the host.
Location location_of_device(int device);

Status advise(MemoryRange range, int advice, Location location);
Status prefetch(StreamHandle stream, MemoryRange range, Location location);

// Writes one attribute of enum cudaMemRangeAttribute to `size_bytes` bytes at `out`.
Status range_attribute(void* out, std::size_t size_bytes, int attribute, MemoryRange range);

// Writes one or more attributes. `Attribute` is CUmem_range_attribute or cudaMemRangeAttribute.
template <class Attribute>
Status range_attributes(void* const* outs, const std::size_t* sizes, const Attribute* attributes,
                        std::size_t count, MemoryRange range) {
  if (outs == nullptr || sizes == nullptr || attributes == nullptr || count == 0)
    return Status::kInvalidValue;
  Status status = Status::kOk;
  for (std::size_t i = 0; i < count && status == Status::kOk; ++i)
    status = range_attribute(outs[i], sizes[i], attributes[i], range);
  return status;
}

// Returns where the pages of a range are, as documented for cuMemGetLocationInfo: the most common
// location in each region of `summary_bytes`, sampled at one page in every `sample_bytes` (0: 64
// KiB). `out` gets pairs of int: type and id.
Status location_info(MemoryRange range, std::size_t summary_bytes, std::size_t sample_bytes,
                     void* out);

// Arguments of the batched calls.
struct Batch {
  void* const* addresses;
  const std::size_t* sizes;
  std::size_t count;
  unsigned long long flags;
  StreamHandle stream;
};
struct Targets {
  const void* locations;  // CUmemLocation or cudaMemLocation: pairs of int, type and id
  const std::size_t* indexes;
  std::size_t count;
};

Status prefetch_batch(const Batch& batch, const Targets& targets);
Status discard_batch(const Batch& batch);
Status discard_and_prefetch_batch(const Batch& batch, const Targets& targets);

}  // namespace uvmsim::api
