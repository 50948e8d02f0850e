// Copies and fills.
#include "sim/cuda/common/visible_devices.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

struct Ends {
  CopyEnd to;
  CopyEnd from;
};

bool read_kind(cudaMemcpyKind kind, Ends* out) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      *out = {CopyEnd::kHostMemory, CopyEnd::kHostMemory};
      return true;
    case cudaMemcpyHostToDevice:
      *out = {CopyEnd::kDeviceMemory, CopyEnd::kHostMemory};
      return true;
    case cudaMemcpyDeviceToHost:
      *out = {CopyEnd::kHostMemory, CopyEnd::kDeviceMemory};
      return true;
    case cudaMemcpyDeviceToDevice:
      *out = {CopyEnd::kDeviceMemory, CopyEnd::kDeviceMemory};
      return true;
    case cudaMemcpyDefault:
      *out = {CopyEnd::kUnknown, CopyEnd::kUnknown};
      return true;
    default:
      return false;
  }
}

cudaError_t run_copy(int device, Copy copy, cudaMemcpyKind kind, cudaStream_t stream, Wait wait) {
  Ends ends{};
  if (!read_kind(kind, &ends)) return fail(cudaErrorInvalidMemcpyDirection);
  copy.to_end = ends.to;
  copy.from_end = ends.from;
  return finish(machine().work().copy(device, stream, copy, wait));
}

Copy rows_of(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
             size_t height) {
  return {.to = to,
          .from = from,
          .width_bytes = width,
          .rows = height,
          .to_pitch_bytes = to_pitch,
          .from_pitch_bytes = from_pitch};
}

}  // namespace

RT_API cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  RT_ENTER_DEVICE;
  return run_copy(device, {.to = to, .from = from, .width_bytes = bytes}, kind, nullptr,
                  Wait::kYes);
}

RT_API cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return run_copy(device, {.to = to, .from = from, .width_bytes = bytes}, kind, stream, Wait::kNo);
}

RT_API cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  RT_ENTER_DEVICE;
  if (!is_visible(to_device) || !is_visible(from_device)) return fail(cudaErrorInvalidDevice);
  return run_copy(device, {.to = to, .from = from, .width_bytes = bytes}, cudaMemcpyDeviceToDevice,
                  nullptr, Wait::kYes);
}

RT_API cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                           cudaStream_t stream) {
  RT_ENTER_DEVICE;
  if (!is_visible(to_device) || !is_visible(from_device)) return fail(cudaErrorInvalidDevice);
  return run_copy(device, {.to = to, .from = from, .width_bytes = bytes}, cudaMemcpyDeviceToDevice,
                  stream, Wait::kNo);
}

RT_API cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                    size_t height, cudaMemcpyKind kind) {
  RT_ENTER_DEVICE;
  if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidPitchValue);
  return run_copy(device, rows_of(to, to_pitch, from, from_pitch, width, height), kind, nullptr,
                  Wait::kYes);
}

RT_API cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidPitchValue);
  return run_copy(device, rows_of(to, to_pitch, from, from_pitch, width, height), kind, stream,
                  Wait::kNo);
}

RT_API cudaMemset(void* to, int value, size_t bytes) {
  RT_ENTER_DEVICE;
  const Fill fill{to, bytes, static_cast<std::uint32_t>(value), 1};
  return finish(machine().work().fill(device, nullptr, fill, Wait::kYes));
}

RT_API cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  const Fill fill{to, bytes, static_cast<std::uint32_t>(value), 1};
  return finish(machine().work().fill(device, stream, fill, Wait::kNo));
}
