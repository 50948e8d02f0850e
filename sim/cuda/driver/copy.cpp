// Copies and fills.
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

CUresult run_copy(int device, CUstream stream, const Copy& copy, Wait wait) {
  return finish(machine().work().copy(device, stream, copy, wait));
}

CUresult run_fill(int device, CUstream stream, CUdeviceptr to, unsigned value,
                  std::size_t value_bytes, std::size_t count, Wait wait) {
  return finish(
      machine().work().fill(device, stream, {as_pointer(to), count, value, value_bytes}, wait));
}

Copy linear(const void* to, const void* from, std::size_t bytes, CopyEnd to_end, CopyEnd from_end) {
  return {.to = const_cast<void*>(to),
          .from = from,
          .width_bytes = bytes,
          .to_end = to_end,
          .from_end = from_end};
}

struct End2D {
  const void* address;
  CopyEnd end;
};

// Returns false for arrays, which the simulated device does not have.
bool read_end(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x_bytes,
              std::size_t y, std::size_t pitch, End2D* out) {
  const std::size_t offset = y * pitch + x_bytes;
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *out = {static_cast<const char*>(host) + offset, CopyEnd::kHostMemory};
      return true;
    case CU_MEMORYTYPE_DEVICE:
      *out = {as_pointer(device + offset), CopyEnd::kDeviceMemory};
      return true;
    case CU_MEMORYTYPE_UNIFIED:
      *out = {as_pointer(device + offset), CopyEnd::kUnknown};
      return true;
    default:
      return false;
  }
}

CUresult run_copy_2d(int device, CUstream stream, const CUDA_MEMCPY2D* request, Wait wait) {
  if (request == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A pitch of zero means rows without a gap.
  const std::size_t to_pitch = request->dstPitch != 0 ? request->dstPitch : request->WidthInBytes;
  const std::size_t from_pitch = request->srcPitch != 0 ? request->srcPitch : request->WidthInBytes;
  End2D to{};
  End2D from{};
  if (!read_end(request->dstMemoryType, request->dstHost, request->dstDevice, request->dstXInBytes,
                request->dstY, to_pitch, &to) ||
      !read_end(request->srcMemoryType, request->srcHost, request->srcDevice, request->srcXInBytes,
                request->srcY, from_pitch, &from)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (request->WidthInBytes > to_pitch || request->WidthInBytes > from_pitch)
    return CUDA_ERROR_INVALID_VALUE;
  Copy copy = linear(to.address, from.address, request->WidthInBytes, to.end, from.end);
  copy.rows = request->Height;
  copy.to_pitch_bytes = to_pitch;
  copy.from_pitch_bytes = from_pitch;
  return run_copy(device, stream, copy, wait);
}

}  // namespace

CU_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CU_ENTER_CONTEXT;
  return run_copy(
      device, nullptr,
      linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kUnknown, CopyEnd::kUnknown),
      Wait::kYes);
}

CU_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_copy(
      device, stream,
      linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kUnknown, CopyEnd::kUnknown),
      Wait::kNo);
}

CU_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  CU_ENTER_CONTEXT;
  return run_copy(device, nullptr,
                  linear(as_pointer(to), from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kHostMemory),
                  Wait::kYes);
}

CU_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  CU_ENTER_CONTEXT;
  return run_copy(device, nullptr,
                  linear(to, as_pointer(from), bytes, CopyEnd::kHostMemory, CopyEnd::kDeviceMemory),
                  Wait::kYes);
}

CU_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CU_ENTER_CONTEXT;
  return run_copy(device, nullptr,
                  linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kDeviceMemory,
                         CopyEnd::kDeviceMemory),
                  Wait::kYes);
}

CU_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_copy(device, stream,
                  linear(as_pointer(to), from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kHostMemory),
                  Wait::kNo);
}

CU_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_copy(device, stream,
                  linear(to, as_pointer(from), bytes, CopyEnd::kHostMemory, CopyEnd::kDeviceMemory),
                  Wait::kNo);
}

CU_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_copy(device, stream,
                  linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kDeviceMemory,
                         CopyEnd::kDeviceMemory),
                  Wait::kNo);
}

CU_API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                    size_t bytes) {
  CU_ENTER_CONTEXT;
  if (device_of(to_context) < 0 || device_of(from_context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return run_copy(device, nullptr,
                  linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kDeviceMemory,
                         CopyEnd::kDeviceMemory),
                  Wait::kYes);
}

CU_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                         CUcontext from_context, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  if (device_of(to_context) < 0 || device_of(from_context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return run_copy(device, stream,
                  linear(as_pointer(to), as_pointer(from), bytes, CopyEnd::kDeviceMemory,
                         CopyEnd::kDeviceMemory),
                  Wait::kNo);
}

CU_API cuMemcpy2D_v2(const CUDA_MEMCPY2D* request) {
  CU_ENTER_CONTEXT;
  return run_copy_2d(device, nullptr, request, Wait::kYes);
}

CU_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* request) {
  CU_ENTER_CONTEXT;
  return run_copy_2d(device, nullptr, request, Wait::kYes);
}

CU_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* request, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_copy_2d(device, stream, request, Wait::kNo);
}

CU_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  CU_ENTER_CONTEXT;
  return run_fill(device, nullptr, to, value, 1, count, Wait::kYes);
}

CU_API cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  CU_ENTER_CONTEXT;
  return run_fill(device, nullptr, to, value, 2, count, Wait::kYes);
}

CU_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  CU_ENTER_CONTEXT;
  return run_fill(device, nullptr, to, value, 4, count, Wait::kYes);
}

CU_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_fill(device, stream, to, value, 1, count, Wait::kNo);
}

CU_API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_fill(device, stream, to, value, 2, count, Wait::kNo);
}

CU_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  CU_ENTER_CONTEXT;
  return run_fill(device, stream, to, value, 4, count, Wait::kNo);
}
