// The samples' kernels for the simulated device, a plug-in that UVMSIM_KERNELS names.
#include <cstdint>
#include <cstring>
#include <vector>

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

// A kernel that may become part of a graph.
struct Mix {
  float* to;
  const float* from;
  float factor;
  int count;

  static int run(void* context) {
    const auto* mix = static_cast<const Mix*>(context);
    float* at = view(mix->to);
    const float* with = view(mix->from);
    for (int index = 0; index < mix->count; ++index) mix_element(at, with, mix->factor, index);
    return 0;
  }
};

int launch_mix(int device, void* stream, const Mix& mix) {
  const std::size_t size_bytes = sizeof(float) * static_cast<std::size_t>(mix.count);
  const uvmsim_access touched[] = {{mix.to, size_bytes, UVMSIM_READ | UVMSIM_WRITE},
                                   {mix.from, size_bytes, UVMSIM_READ}};
  return uvmsim_launch(
      device, stream, touched, 2, kDurationNs, Mix::run,
      [](void* context) { delete static_cast<Mix*>(context); }, new Mix(mix));
}

int mix(int device, void* stream, const uvmsim_grid&, void** arguments) {
  return launch_mix(device, stream,
                    {argument<float*>(arguments, 0), argument<const float*>(arguments, 1),
                     argument<float>(arguments, 2), argument<int>(arguments, 3)});
}

int mix_views(int device, void* stream, const uvmsim_grid&, void** arguments) {
  const auto views = argument<MixViews>(arguments, 0);
  return launch_mix(
      device, stream,
      {views.to.values, views.from.values, argument<float>(arguments, 1), views.to.count});
}

int tick(int device, void* stream, const uvmsim_grid&, void**) {
  return uvmsim_kernel(device, stream, nullptr, 0, kDurationNs);
}

struct Kernel {
  const char* symbol;
  int (*launch)(int device, void* stream, const uvmsim_grid& grid, void** arguments);
  std::vector<std::size_t> sizes_bytes;  // of the parameters
};

const std::vector<Kernel>& kernels() {
  constexpr std::size_t kAddress = sizeof(void*);
  static const std::vector<Kernel> all = {
      {"_Z5scalePffi", scale, {kAddress, 4, 4}},
      {"_Z8row_sumsPKfmiiPf", row_sums, {kAddress, 8, 4, 4, kAddress}},
      {"_Z3mixPfPKffi", mix, {kAddress, kAddress, 4, 4}},
      {"_Z9mix_views8MixViewsf", mix_views, {sizeof(MixViews), 4}},
      {"_Z4tickid", tick, {4, 8}},
  };
  return all;
}

const Kernel* find(const char* symbol) {
  for (const Kernel& kernel : kernels()) {
    if (std::strcmp(symbol, kernel.symbol) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_poll(void) {
  return 1;
}

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_launch(
    const char* symbol, int device, void* stream, const uvmsim_grid* grid, void** arguments) {
  const Kernel* kernel = find(symbol);
  return kernel != nullptr ? kernel->launch(device, stream, *grid, arguments)
                           : UVMSIM_ERROR_INVALID;
}

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_parameters(
    const char* symbol, std::size_t* sizes_bytes, std::size_t capacity) {
  const Kernel* kernel = find(symbol);
  if (kernel == nullptr) return -1;
  const std::vector<std::size_t>& sizes = kernel->sizes_bytes;
  for (std::size_t i = 0; i < sizes.size() && i < capacity; ++i) sizes_bytes[i] = sizes[i];
  return static_cast<int>(sizes.size());
}
