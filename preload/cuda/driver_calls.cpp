// The allocation calls of CUDA's driver, served where UVMALLOC_CUDA asks for it and passed on
// otherwise. The declarations are those of its header, so a wrong signature does not compile.
#include <cuda.h>

#include <uvmalloc/preload/cuda/driver.hpp>
#include <uvmalloc/preload/cuda/vendor.hpp>
#include <uvmalloc/preload/served_answers.hpp>

namespace uvm::preload {
namespace {

void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace
}  // namespace uvm::preload

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
  if (serve(UVMALLOC_ASKED(cuMemAllocAsync, kDevice, device_of_driver), out, size_bytes, stream)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                 CUstream stream) {
  if (serve(UVMALLOC_ASKED(cuMemAllocAsync_ptsz, kDevice, device_of_driver), out, size_bytes,
            per_thread(stream))) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync_ptsz), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t size_bytes,
                                                    CUmemoryPool pool, CUstream stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cuMemAllocFromPoolAsync, kDevice, device_of_driver), out,
                      size_bytes, pool, stream, NEXT_OF_DRIVER(cuDeviceGetDefaultMemPool))) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocFromPoolAsync), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                         CUmemoryPool pool, CUstream stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cuMemAllocFromPoolAsync_ptsz, kDevice, device_of_driver), out,
                      size_bytes, pool, per_thread(stream),
                      NEXT_OF_DRIVER(cuDeviceGetDefaultMemPool))) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocFromPoolAsync_ptsz), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const auto answer = take_back<CUresult>(pointer_of(address))) return *answer;
  return pass_on(NEXT_OF_DRIVER(cuMemFree_v2), address);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeHost(void* address) {
  if (const auto answer = take_back<CUresult>(address)) return *answer;
  return pass_on(NEXT_OF_DRIVER(cuMemFreeHost), address);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const auto answer = take_back<CUresult>(pointer_of(address), device_of_driver, stream);
  return answer ? *answer : pass_on(NEXT_OF_DRIVER(cuMemFreeAsync), address, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  const auto answer =
      take_back<CUresult>(pointer_of(address), device_of_driver, per_thread(stream));
  return answer ? *answer : pass_on(NEXT_OF_DRIVER(cuMemFreeAsync_ptsz), address, stream);
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

static void hide_management(CUpointer_attribute attribute, void* answer) noexcept {
  if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && answer != nullptr) {
    *static_cast<unsigned char*>(answer) = 0;
  }
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttribute(void* answer, CUpointer_attribute attribute,
                                                  CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttribute), answer, attribute, address);
  if (result == CUDA_SUCCESS && hides_management(pointer_of(address)))
    hide_management(attribute, answer);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                   void** answers, CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttributes), count, attributes, answers, address);
  if (result == CUDA_SUCCESS && hides_management(pointer_of(address))) {
    for (unsigned i = 0; i < count; ++i) hide_management(attributes[i], answers[i]);
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuCtxSynchronize() {
  return synchronize(device_of_driver, NEXT_OF_DRIVER(cuCtxSynchronize));
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
