// The allocation calls of CUDA's driver, served where UVMALLOC_CUDA asks for it and passed on
// otherwise. The declarations are those of its header, so a wrong signature does not compile.
#include <cuda.h>

#include "preload/cuda/driver.hpp"
#include "preload/cuda/vendor.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(cuMemAlloc_v2, kDevice, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAlloc_v2), out, size_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height,
                                               unsigned element_bytes) {
  const bool is_valid = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (is_valid && serve_rows(UVMALLOC_ASKED(cuMemAllocPitch_v2, kDevice, device_of_driver), out,
                             pitch_bytes, width_bytes, height)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocPitch_v2), out, pitch_bytes, width_bytes, height,
                 element_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocManaged(CUdeviceptr* out, std::size_t size_bytes,
                                              unsigned flags) {
  const bool is_served =
      flags == CU_MEM_ATTACH_GLOBAL
          ? serve(UVMALLOC_ASKED(cuMemAllocManaged, kManaged, device_of_driver), out, size_bytes)
          : leave(UVMALLOC_CALL(cuMemAllocManaged));
  if (is_served) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuMemAllocManaged), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocHost_v2(void** out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(cuMemAllocHost_v2, kPinned, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocHost_v2), out, size_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (((flags & ~kKnown) == 0 || leave(UVMALLOC_CALL(cuMemHostAlloc))) &&
      serve(UVMALLOC_ASKED(cuMemHostAlloc, kPinned, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostAlloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t size_bytes,
                                            CUstream stream) {
  if (serve_in_order(UVMALLOC_ASKED(cuMemAllocAsync, kDevice, device_of_driver), out, size_bytes,
                     stream, stream, POOL_QUESTIONS_OF_DRIVER)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                 CUstream stream) {
  if (serve_in_order(UVMALLOC_ASKED(cuMemAllocAsync_ptsz, kDevice, device_of_driver), out,
                     size_bytes, stream, per_thread(stream), POOL_QUESTIONS_OF_DRIVER)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync_ptsz), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t size_bytes,
                                                    CUmemoryPool pool, CUstream stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cuMemAllocFromPoolAsync, kDevice, device_of_driver), out,
                      size_bytes, pool, stream, stream, POOL_QUESTIONS_OF_DRIVER)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocFromPoolAsync), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                         CUmemoryPool pool, CUstream stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cuMemAllocFromPoolAsync_ptsz, kDevice, device_of_driver), out,
                      size_bytes, pool, stream, per_thread(stream), POOL_QUESTIONS_OF_DRIVER)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocFromPoolAsync_ptsz), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemFree_v2(CUdeviceptr address) {
  return release(address, kFreesOfDevice, NEXT_OF_DRIVER(cuMemFree_v2));
}

UVMALLOC_INTERPOSE CUresult cuMemFreeHost(void* address) {
  return release(address, kFreesOfHost, NEXT_OF_DRIVER(cuMemFreeHost));
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return release_in_order(address, stream, stream, device_of_stream_by_driver,
                          NEXT_OF_DRIVER(cuMemFreeAsync));
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return release_in_order(address, stream, per_thread(stream), device_of_stream_by_driver,
                          NEXT_OF_DRIVER(cuMemFreeAsync_ptsz));
}

// The driver knows spans, not the blocks in them.
UVMALLOC_INTERPOSE CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size_bytes,
                                                    CUdeviceptr address) {
  if (const auto range = find(pointer_of(address))) {
    if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(range->base);
    if (size_bytes != nullptr) *size_bytes = range->size_bytes;
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemGetAddressRange_v2), base, size_bytes, address);
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address,
                                                         unsigned flags) {
  if (out != nullptr && flags == 0 && is_pinned(address)) {
    *out = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostGetDevicePointer_v2), out, address, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  if (flags != nullptr && is_pinned(address)) {
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostGetFlags), flags, address);
}

UVMALLOC_INTERPOSE CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address,
                                                   std::size_t size_bytes, unsigned flags) {
  if (find(pointer_of(address))) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuStreamAttachMemAsync), stream, address, size_bytes, flags);
}
UVMALLOC_INTERPOSE CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address,
                                                        std::size_t size_bytes, unsigned flags) {
  if (find(pointer_of(address))) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuStreamAttachMemAsync_ptsz), stream, address, size_bytes, flags);
}

// What the driver says of the span that an address is in is made true of the block.
static void tell_of_block(CUpointer_attribute attribute, void* answer,
                          const ServedMemory::Range& block) noexcept {
  if (answer == nullptr) return;
  const bool is_pinned = block.kind == Kind::kPinned;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(answer) = reinterpret_cast<CUdeviceptr>(block.base);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(answer) = block.size_bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (is_pinned) *static_cast<unsigned*>(answer) = CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      if (is_pinned || hides_management(block)) *static_cast<unsigned char*>(answer) = 0;
      break;
    default:
      break;
  }
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttribute(void* answer, CUpointer_attribute attribute,
                                                  CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttribute), answer, attribute, address);
  if (result == CUDA_SUCCESS) {
    if (const auto block = find(pointer_of(address))) tell_of_block(attribute, answer, *block);
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                   void** answers, CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttributes), count, attributes, answers, address);
  if (result == CUDA_SUCCESS) {
    if (const auto block = find(pointer_of(address))) {
      for (unsigned i = 0; i < count; ++i) tell_of_block(attributes[i], answers[i], *block);
    }
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuCtxSynchronize() {
  return synchronize(device_of_driver, NEXT_OF_DRIVER(cuCtxSynchronize));
}

// nullptr is the current context.
UVMALLOC_INTERPOSE CUresult cuCtxSynchronize_v2(CUcontext context) {
  return synchronize([&] { return device_of(context); }, NEXT_OF_DRIVER(cuCtxSynchronize_v2),
                     context);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
