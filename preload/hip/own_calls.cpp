// The allocation calls of HIP that CUDA's runtime does not have: the older names of pinned memory,
// and those of HIP's copy of the driver interface.
#include <optional>

#include "preload/captures.hpp"
#include "preload/context_ends.hpp"
#include "preload/hip/vendor.hpp"
#include "preload/symbol_lookup.hpp"
#include "runtime/hip/vendor.hpp"

using namespace uvm::preload;
using namespace uvm::preload::hip;

namespace {

// The only grain and placement that served pinned memory has.
constexpr unsigned kKnownHostFlags =
    hipHostMallocPortable | hipHostMallocMapped | hipHostMallocWriteCombined;

// Its number in the version that runs, not the headers'.
hipMemoryType device_type() noexcept {
  int version = 0;
  const bool is_known = pass_on(NEXT_OF_RUNTIME(hipDriverGetVersion), &version) == hipSuccess;
  if (!is_known) return hipMemoryTypeDevice;
  return static_cast<hipMemoryType>(uvm::hip::device_memory_type(version));
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE hipError_t hipHostMalloc(void** out, std::size_t size_bytes, unsigned flags) {
  if (((flags & ~kKnownHostFlags) == 0 || leave(UVMALLOC_CALL(hipHostMalloc))) &&
      serve(UVMALLOC_ASKED(hipHostMalloc, kPinned, device_of_runtime), out, size_bytes)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipHostMalloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE hipError_t hipMemAllocHost(void** out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(hipMemAllocHost, kPinned, device_of_runtime), out, size_bytes)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemAllocHost), out, size_bytes);
}

UVMALLOC_INTERPOSE hipError_t hipHostFree(void* address) {
  return release(address, kFreesOfHost, NEXT_OF_RUNTIME(hipHostFree));
}

UVMALLOC_INTERPOSE hipError_t hipMemAllocPitch(hipDeviceptr_t* out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height,
                                               unsigned element_bytes) {
  if (serve_rows(UVMALLOC_ASKED(hipMemAllocPitch, kDevice, device_of_runtime), out, pitch_bytes,
                 width_bytes, height)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemAllocPitch), out, pitch_bytes, width_bytes, height,
                 element_bytes);
}

// HIP knows spans, not the blocks in them.
UVMALLOC_INTERPOSE hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, std::size_t* size_bytes,
                                                    hipDeviceptr_t address) {
  if (const auto range = find(address)) {
    if (base != nullptr) *base = range->base;
    if (size_bytes != nullptr) *size_bytes = range->size_bytes;
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemGetAddressRange), base, size_bytes, address);
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttributes(hipPointerAttribute_t* out,
                                                      const void* address) {
  const hipError_t result = pass_on(NEXT_OF_RUNTIME(hipPointerGetAttributes), out, address);
  const auto block = result == hipSuccess ? find(address) : std::nullopt;
  if (block && hides_management(*block)) {
    out->type = device_type();
    out->isManaged = 0;
  }
  return result;
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttribute(void* answer, hipPointer_attribute attribute,
                                                     hipDeviceptr_t address) {
  const hipError_t result =
      pass_on(NEXT_OF_RUNTIME(hipPointerGetAttribute), answer, attribute, address);
  const auto block = result == hipSuccess && answer != nullptr ? find(address) : std::nullopt;
  if (!block) return result;
  if (attribute == HIP_POINTER_ATTRIBUTE_IS_MANAGED && hides_management(*block)) {
    *static_cast<bool*>(answer) = false;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_MEMORY_TYPE && hides_management(*block)) {
    *static_cast<unsigned*>(answer) = device_type();
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
    *static_cast<void**>(answer) = block->base;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_SIZE) {
    *static_cast<std::size_t*>(answer) = block->size_bytes;
  }
  return result;
}

UVMALLOC_INTERPOSE hipError_t hipGetProcAddress(const char* name, void** out, int version,
                                                std::uint64_t flags,
                                                hipDriverProcAddressQueryResult* status) {
  const hipError_t result =
      pass_on(NEXT_OF_RUNTIME(hipGetProcAddress), name, out, version, flags, status);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

#define UVMALLOC_HIP_ENTRY_POINT(function)                                                       \
  UVMALLOC_INTERPOSE hipError_t function(const char* name, void** out, unsigned long long flags, \
                                         hipDriverEntryPointQueryResult* status) {               \
    const hipError_t result = pass_on(NEXT_OF_RUNTIME(function), name, out, flags, status);      \
    put_ours_for(__builtin_return_address(0), result, out);                                      \
    return result;                                                                               \
  }
UVMALLOC_HIP_ENTRY_POINT(hipGetDriverEntryPoint)
UVMALLOC_HIP_ENTRY_POINT(hipGetDriverEntryPoint_spt)

#define UVMALLOC_BEGIN_CAPTURE(function, order)                                             \
  UVMALLOC_INTERPOSE hipError_t function(hipStream_t stream, hipStreamCaptureMode mode) {   \
    return begin_capture(#function, device_of_stream(stream), order(stream),                \
                         [&] { return pass_on(NEXT_OF_RUNTIME(function), stream, mode); }); \
  }
#define UVMALLOC_END_CAPTURE(function, order)                                     \
  UVMALLOC_INTERPOSE hipError_t function(hipStream_t stream, hipGraph_t* graph) { \
    return end_capture(                                                           \
        static_cast<hipStream_t>(order(stream)),                                  \
        [&] { return pass_on(NEXT_OF_RUNTIME(function), stream, graph); },        \
        NEXT_OF_RUNTIME(hipStreamIsCapturing));                                   \
  }

static uvm::StreamHandle as_it_is(hipStream_t stream) {
  return stream;
}

UVMALLOC_BEGIN_CAPTURE(hipStreamBeginCapture, as_it_is)
UVMALLOC_BEGIN_CAPTURE(hipStreamBeginCapture_spt, per_thread)
UVMALLOC_END_CAPTURE(hipStreamEndCapture, as_it_is)
UVMALLOC_END_CAPTURE(hipStreamEndCapture_spt, per_thread)

UVMALLOC_INTERPOSE hipError_t hipStreamBeginCaptureToGraph(hipStream_t stream, hipGraph_t graph,
                                                           const hipGraphNode_t* dependencies,
                                                           const hipGraphEdgeData* edges,
                                                           std::size_t count,
                                                           hipStreamCaptureMode mode) {
  return begin_capture(__func__, device_of_stream(stream), stream, [&] {
    return pass_on(NEXT_OF_RUNTIME(hipStreamBeginCaptureToGraph), stream, graph, dependencies,
                   edges, count, mode);
  });
}

UVMALLOC_INTERPOSE hipError_t hipDeviceReset() {
  return pass_reset_on(
      __func__, device_of_runtime(), [] { return pass_on(NEXT_OF_RUNTIME(hipDeviceReset)); },
      [] { return false; });
}

// NOLINTEND(readability-identifier-naming)
