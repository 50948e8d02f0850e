// The samples' kernels on the simulated device, as UVMSIM_KERNELS names them.
#include <cstdint>
#include <cstring>

#include <uvmalloc/sim/uvmsim.h>

#include "kernel_bodies.hpp"

namespace {

template <class Type>
Type argument(void** arguments, int index) {
  Type out;
  std::memcpy(&out, arguments[index], sizeof out);
  return out;
}

template <class Type>
Type* view(Type* address) {
  return static_cast<Type*>(uvmsim_device_view(address));
}

constexpr std::uint64_t kDurationNs = 10'000;

int scale(int device, void* stream, const uvmsim_grid& grid, void** arguments) {
  auto* values = argument<float*>(arguments, 0);
  const auto factor = argument<float>(arguments, 1);
  const auto count = argument<int>(arguments, 2);
  const uvmsim_access touched{values, sizeof(float) * static_cast<std::size_t>(count),
                              UVMSIM_READ | UVMSIM_WRITE};
  if (int error = uvmsim_kernel(device, stream, &touched, 1, kDurationNs); error != UVMSIM_OK) {
    return error;
  }
  float* at = view(values);
  const auto threads = static_cast<int>(grid.blocks[0] * grid.threads[0]);
  for (int index = 0; index < threads && index < count; ++index) scale_element(at, factor, index);
  return UVMSIM_OK;
}

int row_sums(int device, void* stream, const uvmsim_grid& grid, void** arguments) {
  const auto* image = argument<const float*>(arguments, 0);
  const auto pitch_bytes = argument<std::size_t>(arguments, 1);
  const auto width = argument<int>(arguments, 2);
  const auto height = argument<int>(arguments, 3);
  auto* sums = argument<float*>(arguments, 4);
  const auto rows = static_cast<std::size_t>(height);
  const uvmsim_access touched[] = {{image, pitch_bytes * rows, UVMSIM_READ},
                                   {sums, sizeof(float) * rows, UVMSIM_WRITE}};
  if (int error = uvmsim_kernel(device, stream, touched, 2, kDurationNs); error != UVMSIM_OK) {
    return error;
  }
  const float* from = view(image);
  float* to = view(sums);
  const auto threads = static_cast<int>(grid.blocks[0] * grid.threads[0]);
  for (int row = 0; row < threads && row < height; ++row)
    sum_row(from, pitch_bytes, width, to, row);
  return UVMSIM_OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_poll(void) {
  return 1;
}

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_launch(
    const char* symbol, int device, void* stream, const uvmsim_grid* grid, void** arguments) {
  if (std::strcmp(symbol, "_Z5scalePffi") == 0) return scale(device, stream, *grid, arguments);
  if (std::strcmp(symbol, "_Z8row_sumsPKfmiiPf") == 0) {
    return row_sums(device, stream, *grid, arguments);
  }
  return UVMSIM_ERROR_INVALID;
}
