// Arrays: rows of elements in device memory, which a program writes and reads by copies. Textures
// and surfaces, through which kernels use arrays, are not implemented.
#include <mutex>
#include <set>
#include <utility>

#include "sim/cuda/runtime/entry.hpp"

// Programs only get a pointer to this structure.
struct cudaArray {
  void* address;
  size_t pitch_bytes;
  size_t width_bytes;
  cudaExtent extent;  // in elements; height 0 means one row
  cudaChannelFormatDesc format;
  unsigned flags;
  size_t rows() const { return extent.height == 0 ? 1 : extent.height; }
};

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

std::mutex arrays_mutex;
std::set<const cudaArray*>& arrays() {
  static auto* const all = new std::set<const cudaArray*>;
  return *all;
}

bool is_array(const cudaArray* array) {
  const std::lock_guard lock(arrays_mutex);
  return arrays().contains(array);
}

// Returns the bytes of an element, or 0 if the format is invalid.
size_t element_bytes(const cudaChannelFormatDesc& format) {
  const int bits = format.x;
  if (bits != 8 && bits != 16 && bits != 32) return 0;
  size_t channels = 1;
  for (const int channel : {format.y, format.z, format.w}) {
    if (channel != 0 && channel != bits) return 0;
    channels += channel != 0 ? 1 : 0;
  }
  return channels == 3 ? 0 : channels * static_cast<size_t>(bits) / 8;
}

// Copies rows between pitched memory and an array. In the array the copy starts at row `y` and, in
// each row, at byte `x_bytes`.
enum class Direction { kToArray, kFromArray };
cudaError_t copy_rows(Direction direction, const cudaArray* array, size_t x_bytes, size_t y,
                      void* memory, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind,
                      cudaStream_t stream, Wait wait) {
  const int device = use_device();
  if (device < 0) return fail(cudaErrorNoDevice);
  if (!is_array(array)) return fail(cudaErrorInvalidValue);
  if (width > pitch && height > 1) return fail(cudaErrorInvalidPitchValue);
  if (x_bytes > array->width_bytes || width > array->width_bytes - x_bytes || y > array->rows() ||
      height > array->rows() - y) {
    return fail(cudaErrorInvalidValue);
  }
  const cudaMemcpyKind array_side =
      direction == Direction::kToArray ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  CopyEnd other = CopyEnd::kUnknown;
  if (kind == array_side) {
    other = CopyEnd::kHostMemory;
  } else if (kind == cudaMemcpyDeviceToDevice) {
    other = CopyEnd::kDeviceMemory;
  } else if (kind != cudaMemcpyDefault) {
    return fail(cudaErrorInvalidMemcpyDirection);
  }
  void* inside = static_cast<char*>(array->address) + y * array->pitch_bytes + x_bytes;
  Copy copy{.to = inside,
            .from = memory,
            .width_bytes = width,
            .to_end = CopyEnd::kDeviceMemory,
            .from_end = other,
            .rows = height,
            .to_pitch_bytes = array->pitch_bytes,
            .from_pitch_bytes = pitch};
  if (direction == Direction::kFromArray) {
    std::swap(copy.to_end, copy.from_end);
    std::swap(copy.to_pitch_bytes, copy.from_pitch_bytes);
    copy.to = memory;
    copy.from = inside;
  }
  return finish(machine().work().copy(device, stream, copy, wait));
}

}  // namespace

RT_API cudaMallocArray(cudaArray_t* out, const cudaChannelFormatDesc* format, size_t width,
                       size_t height, unsigned flags) {
  RT_ENTER_DEVICE;
  constexpr unsigned kKnown = cudaArrayDefault | cudaArraySurfaceLoadStore | cudaArrayTextureGather;
  const size_t bytes = format != nullptr ? element_bytes(*format) : 0;
  if (out == nullptr || bytes == 0 || width == 0 || (flags & ~kKnown) != 0) {
    return fail(cudaErrorInvalidValue);
  }
  size_t width_bytes = 0;
  if (__builtin_mul_overflow(width, bytes, &width_bytes)) return fail(cudaErrorMemoryAllocation);
  auto* array = new cudaArray{nullptr, 0, width_bytes, {width, height, 0}, *format, flags};
  const Status status = machine().memory().allocate_rows(device, width_bytes, array->rows(),
                                                         &array->pitch_bytes, &array->address);
  if (status != Status::kOk) {
    delete array;
    return finish(status);
  }
  const std::lock_guard lock(arrays_mutex);
  arrays().insert(array);
  *out = array;
  return cudaSuccess;
}

RT_API cudaFreeArray(cudaArray_t array) {
  RT_ENTER_DEVICE;
  (void)device;
  if (array == nullptr) return cudaSuccess;
  {
    const std::lock_guard lock(arrays_mutex);
    if (arrays().erase(array) == 0) return fail(cudaErrorInvalidValue);
  }
  const Status status = machine().memory().free(array->address, Wait::kYes);
  delete array;
  return finish(status);
}

RT_API cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags,
                        cudaArray_t array) {
  RT_ENTER;
  if (!is_array(array)) return fail(cudaErrorInvalidValue);
  if (format != nullptr) *format = array->format;
  if (extent != nullptr) *extent = array->extent;
  if (flags != nullptr) *flags = array->flags;
  return cudaSuccess;
}

RT_API cudaMemcpy2DToArray(cudaArray_t to, size_t x_bytes, size_t y, const void* from, size_t pitch,
                           size_t width, size_t height, cudaMemcpyKind kind) {
  RT_ENTER;
  return copy_rows(Direction::kToArray, to, x_bytes, y, const_cast<void*>(from), pitch, width,
                   height, kind, nullptr, Wait::kYes);
}

RT_API cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x_bytes, size_t y, const void* from,
                                size_t pitch, size_t width, size_t height, cudaMemcpyKind kind,
                                cudaStream_t stream) {
  RT_ENTER;
  return copy_rows(Direction::kToArray, to, x_bytes, y, const_cast<void*>(from), pitch, width,
                   height, kind, stream, Wait::kNo);
}

RT_API cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x_bytes,
                             size_t y, size_t width, size_t height, cudaMemcpyKind kind) {
  RT_ENTER;
  return copy_rows(Direction::kFromArray, from, x_bytes, y, to, pitch, width, height, kind, nullptr,
                   Wait::kYes);
}

RT_API cudaMemcpy2DFromArrayAsync(void* to, size_t pitch, cudaArray_const_t from, size_t x_bytes,
                                  size_t y, size_t width, size_t height, cudaMemcpyKind kind,
                                  cudaStream_t stream) {
  RT_ENTER;
  return copy_rows(Direction::kFromArray, from, x_bytes, y, to, pitch, width, height, kind, stream,
                   Wait::kNo);
}
