#include <uvmalloc/sim/api/kernel_plugin.hpp>

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace uvmsim::api {
namespace {

using Poll = int (*)();

std::atomic<bool> done{false};

Poll load_poll() {
  const char* path = std::getenv("UVMSIM_KERNELS");
  if (path == nullptr || *path == '\0') return nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(
        stderr,
        "uvmsim: UVMSIM_KERNELS is '%s', which cannot be loaded: %s; going on without kernels\n",
        path, dlerror());
    return nullptr;
  }
  auto poll = reinterpret_cast<Poll>(dlsym(library, "uvmsim_kernels_poll"));
  if (poll == nullptr) {
    std::fprintf(stderr,
                 "uvmsim: UVMSIM_KERNELS is '%s', which has no uvmsim_kernels_poll; going on "
                 "without kernels\n",
                 path);
  }
  return poll;
}

// One thread polls at a time, the others go on; a recursive call from the poll, or from the
// constructors of a library that is being loaded for it, goes on too.
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

}  // namespace uvmsim::api
