#include "sim/api/kernel_plugin.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace uvmsim::api {
namespace {

using Poll = int (*)();
using LaunchKernel = decltype(&uvmsim_kernels_launch);
using TellParameters = decltype(&uvmsim_kernels_parameters);

std::atomic<bool> done{false};
std::atomic<LaunchKernel> plugin_launch{nullptr};
std::atomic<TellParameters> plugin_parameters{nullptr};

Poll load_poll() {
  const char* path = secure_getenv("UVMSIM_KERNELS");
  if (path == nullptr || *path == '\0') return nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(
        stderr,
        "uvmsim: UVMSIM_KERNELS is '%s', which cannot be loaded: %s; going on without kernels\n",
        path, dlerror());
    return nullptr;
  }
  plugin_launch = reinterpret_cast<LaunchKernel>(dlsym(library, "uvmsim_kernels_launch"));
  plugin_parameters = reinterpret_cast<TellParameters>(dlsym(library, "uvmsim_kernels_parameters"));
  auto poll = reinterpret_cast<Poll>(dlsym(library, "uvmsim_kernels_poll"));
  if (poll == nullptr) {
    std::fprintf(stderr,
                 "uvmsim: UVMSIM_KERNELS is '%s', which has no uvmsim_kernels_poll; going on "
                 "without kernels\n",
                 path);
  }
  return poll;
}

// One thread polls at a time. Calls of other threads return at once, and so do recursive calls from
// the poll or from the constructors of a library that the poll loads.
void poll_once() {
  static std::atomic<bool> busy{false};
  static std::atomic<bool> loaded{false};
  static Poll poll = nullptr;
  if (busy.exchange(true, std::memory_order_acquire)) return;
  if (!loaded.load(std::memory_order_relaxed)) {
    poll = load_poll();
    loaded.store(true, std::memory_order_relaxed);
  }
  if (poll == nullptr || poll() != 0) done.store(true, std::memory_order_relaxed);
  busy.store(false, std::memory_order_release);
}

}  // namespace

void poll_kernel_plugin() {
  if (!done.load(std::memory_order_relaxed)) poll_once();
}

int launch_in_plugin(const char* symbol, int device, void* stream, const uvmsim_grid& grid,
                     void** arguments) {
  poll_kernel_plugin();
  const LaunchKernel launch = plugin_launch.load(std::memory_order_acquire);
  return launch != nullptr ? launch(symbol, device, stream, &grid, arguments)
                           : UVMSIM_ERROR_INVALID;
}

std::optional<std::vector<std::size_t>> parameter_sizes_in_plugin(const char* symbol) {
  constexpr std::size_t kMostParameters = 1024;
  poll_kernel_plugin();
  const TellParameters tell = plugin_parameters.load(std::memory_order_acquire);
  if (tell == nullptr) return std::nullopt;
  std::vector<std::size_t> sizes(kMostParameters);
  const int count = tell(symbol, sizes.data(), sizes.size());
  if (count < 0) return std::nullopt;
  sizes.resize(static_cast<std::size_t>(count));
  return sizes;
}

}  // namespace uvmsim::api
