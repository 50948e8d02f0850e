// Copies and fills under the names of the driver's interface.
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

hipError_t run(int device, hipDeviceptr_t to, const void* from, size_t bytes, CopyEnd to_end,
               CopyEnd from_end, hipStream_t stream, Wait wait) {
  return finish(machine().work().copy(
      device, stream,
      {.to = to, .from = from, .width_bytes = bytes, .to_end = to_end, .from_end = from_end},
      wait));
}

template <class Value>
hipError_t fill(int device, hipDeviceptr_t to, Value value, size_t count, hipStream_t stream,
                Wait wait) {
  const Fill filled{to, count, static_cast<std::uint32_t>(value), sizeof value};
  return finish(machine().work().fill(device, stream, filled, wait));
}

}  // namespace

RT_API hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t bytes) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kHostMemory, nullptr,
             Wait::kYes);
}

RT_API hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kHostMemory, CopyEnd::kDeviceMemory, nullptr,
             Wait::kYes);
}

RT_API hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kDeviceMemory, nullptr,
             Wait::kYes);
}

RT_API hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t bytes, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kHostMemory, stream,
             Wait::kNo);
}

RT_API hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kHostMemory, CopyEnd::kDeviceMemory, stream,
             Wait::kNo);
}

RT_API hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes,
                          hipStream_t stream) {
  RT_ENTER_DEVICE;
  return run(device, to, from, bytes, CopyEnd::kDeviceMemory, CopyEnd::kDeviceMemory, stream,
             Wait::kNo);
}

RT_API hipMemcpyWithStream(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                           hipStream_t stream) {
  const hipError_t result = hipMemcpyAsync(to, from, bytes, kind, stream);
  return result == hipSuccess ? hipStreamSynchronize(stream) : result;
}

RT_API hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, nullptr, Wait::kYes);
}

RT_API hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, nullptr, Wait::kYes);
}

RT_API hipMemsetD32(hipDeviceptr_t to, int value, size_t count) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, nullptr, Wait::kYes);
}

RT_API hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, stream, Wait::kNo);
}

RT_API hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                         hipStream_t stream) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, stream, Wait::kNo);
}

RT_API hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return fill(device, to, value, count, stream, Wait::kNo);
}
