#include "sim/api/placement.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "sim/engine/initialization.hpp"
#include "sim/engine/thread_context.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim::api {
namespace {

struct NativeLocation {
  int type;
  int id;
};
static_assert(sizeof(NativeLocation) == sizeof(CUmemLocation));

constexpr std::size_t kDefaultSampleBytes = 64 << 10;  // assumed: documented as system dependent

constexpr int kHostId = -1;     // cudaCpuDeviceId
constexpr int kInvalidId = -2;  // cudaInvalidDeviceId

bool is_visible(int device) {
  return device >= 0 && device < initialized_device_count();
}

int current_device() {
  return ThreadContext::current().device();
}

std::optional<int> engine_location(Location location) {
  switch (location.type) {
    case LocationType::kGpu:
      return is_visible(location.id) ? std::optional(location.id) : std::nullopt;
    case LocationType::kCpu:
    case LocationType::kCpuNode:
    case LocationType::kCurrentCpuNode:
      return kHost;
    default:
      return std::nullopt;
  }
}

bool takes_location(Advice advice) {
  return advice == Advice::kSetPreferredLocation || advice == Advice::kSetAccessedBy ||
         advice == Advice::kUnsetAccessedBy;
}

int id_of(int location) {
  return location == kHost ? kHostId : location == kNoLocation ? kInvalidId : location;
}

int type_of(int location) {
  return location == kHost         ? CU_MEM_LOCATION_TYPE_HOST
         : location == kNoLocation ? CU_MEM_LOCATION_TYPE_INVALID
                                   : CU_MEM_LOCATION_TYPE_DEVICE;
}

// Writes every accessor, then fills the array with kInvalidId.
void write_accessed_by(std::uint64_t accessed_by, int* out, std::size_t count) {
  std::size_t written = 0;
  const auto write = [&](int location) {
    if (written < count && (accessed_by & Policy::bit_of(location)) != 0)
      out[written++] = id_of(location);
  };
  write(kHost);
  for (int device = 0; device < initialized_device_count(); ++device) write(device);
  while (written < count) out[written++] = kInvalidId;
}

// Refuses batched calls on the legacy default stream, by either of its names, and on devices
// without concurrent access to managed memory.
Status check_batch(const Batch& batch) {
  if (!Machine::instance().profile().concurrent_managed_access) return Status::kInvalidDevice;
  if (batch.count == 0 || batch.addresses == nullptr || batch.sizes == nullptr ||
      batch.flags != 0) {
    return Status::kInvalidValue;
  }
  if (batch.stream == nullptr || batch.stream == CU_STREAM_LEGACY) return Status::kInvalidValue;
  for (std::size_t i = 0; i < batch.count; ++i) {
    if (!Machine::instance().placements().accept({batch.addresses[i], batch.sizes[i]}))
      return Status::kInvalidValue;
  }
  return Status::kOk;
}

Location target(const Targets& targets, std::size_t index) {
  NativeLocation native{};
  std::memcpy(&native, static_cast<const NativeLocation*>(targets.locations) + index,
              sizeof native);
  return {static_cast<LocationType>(native.type), native.id};
}

Status check_targets(const Batch& batch, const Targets& targets) {
  if (targets.locations == nullptr || targets.indexes == nullptr || targets.count == 0 ||
      targets.count > batch.count || targets.indexes[0] != 0) {
    return Status::kInvalidValue;
  }
  for (std::size_t i = 0; i < targets.count; ++i) {
    if (i > 0 && targets.indexes[i] <= targets.indexes[i - 1]) return Status::kInvalidValue;
    if (targets.indexes[i] >= batch.count) return Status::kInvalidValue;
    if (!engine_location(target(targets, i))) return Status::kInvalidDevice;
  }
  return Status::kOk;
}

// Each 2 MiB block of a range moves as if by a separate call.
void add_blocks(const RangeMove& move, std::vector<RangeMove>* blocks) {
  const char* next = static_cast<const char*>(move.range.address);
  std::size_t left = move.range.size_bytes;
  while (left != 0) {
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(next) % kBlockBytes;
    const std::size_t size = std::min(left, kBlockBytes - offset);
    blocks->push_back({{next, size}, move.location});
    next += size;
    left -= size;
  }
}

// check_batch() and check_targets() have accepted the arguments. `targets` is null for a discard.
Status move_all(const Batch& batch, BatchKind kind, const Targets* targets) {
  std::vector<RangeMove> moves;
  std::size_t next = 0;
  for (std::size_t i = 0; i < batch.count; ++i) {
    RangeMove move{{batch.addresses[i], batch.sizes[i]}};
    if (targets != nullptr) {
      if (next < targets->count && targets->indexes[next] == i) ++next;
      move.location = *engine_location(target(*targets, next - 1));
    }
    add_blocks(move, &moves);
  }
  return Machine::instance().placements().move_batch(current_device(), batch.stream, kind, moves);
}

}  // namespace

Location location_of_device(int device) {
  return device == kHostId ? Location{LocationType::kCpu, 0} : Location{LocationType::kGpu, device};
}

Status advise(MemoryRange range, int advice, Location location) {
  if (advice < static_cast<int>(Advice::kSetReadMostly) ||
      advice > static_cast<int>(Advice::kUnsetAccessedBy)) {
    return Status::kInvalidValue;
  }
  const auto request = static_cast<Advice>(advice);
  if (!takes_location(request))
    return Machine::instance().placements().advise(range, request, kHost);
  const auto place = engine_location(location);
  if (!place) return Status::kInvalidDevice;
  const bool names_a_node =
      location.type == LocationType::kCpuNode || location.type == LocationType::kCurrentCpuNode;
  if (names_a_node && request != Advice::kSetPreferredLocation) return Status::kInvalidValue;
  return Machine::instance().placements().advise(range, request, *place);
}

Status prefetch(StreamHandle stream, MemoryRange range, Location location) {
  const auto place = engine_location(location);
  if (!place || !Machine::instance().profile().concurrent_managed_access)
    return Status::kInvalidDevice;
  return Machine::instance().placements().prefetch(current_device(), stream, range, *place);
}

Status range_attribute(void* out, std::size_t size_bytes, int attribute, MemoryRange range) {
  if (out == nullptr || size_bytes < sizeof(int) || size_bytes % sizeof(int) != 0) {
    return Status::kInvalidValue;
  }
  if (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size_bytes != sizeof(int)) {
    return Status::kInvalidValue;
  }
  RangePlacement placement{};
  if (const Status status = Machine::instance().placements().describe(range, &placement);
      status != Status::kOk) {
    return status;
  }
  int* values = static_cast<int*>(out);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *values = placement.read_mostly ? 1 : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *values = id_of(placement.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *values = type_of(placement.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
      write_accessed_by(placement.accessed_by, values, size_bytes / sizeof(int));
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *values = id_of(placement.last_prefetch);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *values = type_of(placement.last_prefetch);
      break;
    default:
      return Status::kInvalidValue;
  }
  return Status::kOk;
}

Status location_info(MemoryRange range, std::size_t summary_bytes, std::size_t sample_bytes,
                     void* out) {
  if (!Machine::instance().profile().concurrent_managed_access) return Status::kNotSupported;
  if (out == nullptr || summary_bytes == 0 || summary_bytes > range.size_bytes ||
      sample_bytes > summary_bytes) {
    return Status::kInvalidValue;
  }
  const std::size_t step =
      sample_bytes != 0 ? sample_bytes : std::min(kDefaultSampleBytes, summary_bytes);
  auto* next = static_cast<NativeLocation*>(out);
  std::vector<int> found;
  for (std::size_t begin = 0; begin < range.size_bytes; begin += summary_bytes) {
    const std::size_t size = std::min(summary_bytes, range.size_bytes - begin);
    found.clear();
    const Status status = Machine::instance().placements().sample_locations(
        {static_cast<const char*>(range.address) + begin, size}, step, &found);
    if (status != Status::kOk) return status;
    const auto count = [&](int location) {
      return std::count(found.begin(), found.end(), location);
    };
    const int most = *std::max_element(found.begin(), found.end(),
                                       [&](int a, int b) { return count(a) < count(b); });
    *next++ = {type_of(most), most < 0 ? 0 : most};
  }
  return Status::kOk;
}

Status prefetch_batch(const Batch& batch, const Targets& targets) {
  Status status = check_batch(batch);
  if (status == Status::kOk) status = check_targets(batch, targets);
  return status == Status::kOk ? move_all(batch, BatchKind::kPrefetch, &targets) : status;
}

Status discard_batch(const Batch& batch) {
  const Status status = check_batch(batch);
  return status == Status::kOk ? move_all(batch, BatchKind::kDiscard, nullptr) : status;
}

Status discard_and_prefetch_batch(const Batch& batch, const Targets& targets) {
  Status status = check_batch(batch);
  if (status == Status::kOk) status = check_targets(batch, targets);
  return status == Status::kOk ? move_all(batch, BatchKind::kDiscardAndPrefetch, &targets) : status;
}

}  // namespace uvmsim::api
