// Decides when to load which kernels. This is the part of the simulated device's PyTorch support
// that is not linked to torch. A flag says that loading is complete. A mutex guards each attempt.
// While the mutex is held, no call waits for another thread of this library.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

#include "pytorch/interpose/torch_probe.hpp"
#include "sim/torch/sim_kernels.h"

#define UVMSIM_EXPORT __attribute__((visibility("default")))

namespace {

using InstallFunction = int (*)();

// Returns the path of the kernels' library for that version of torch, in the folder of this
// library.
std::string kernel_library_path(const uvm::TorchInProcess& torch) {
  const std::string name =
      "libuvmsim_torch_" + std::to_string(torch.major) + "_" + std::to_string(torch.minor) + ".so";
  Dl_info self{};
  if (!dladdr(reinterpret_cast<void*>(&uvmsim_kernels_poll), &self) || !self.dli_fname) return name;
  const std::string path = self.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

void say_unavailable(const char* reason) {
  std::fprintf(stderr, "uvmsim: CUDA operators are not available on the simulated device: %s\n",
               reason);
}

// Returns null, after a line on stderr, if the library cannot be loaded.
InstallFunction load_install_function(const uvm::TorchInProcess& torch) {
  const std::string path = kernel_library_path(torch);
  if (access(path.c_str(), R_OK) != 0) {
    const std::string version = torch.version.empty() ? "of unknown version" : torch.version;
    say_unavailable(
        ("there are no kernels for torch " + version + " (" + path + " is missing)").c_str());
    return nullptr;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, "uvmsim_torch_install") : nullptr;
  if (!function) {
    const char* reason = dlerror();
    say_unavailable(reason ? reason : "unknown error of the loader");
  }
  return reinterpret_cast<InstallFunction>(function);
}

int attempt() {
  const uvm::TorchInProcess torch = uvm::find_torch();
  // libtorch_python is the last of torch's libraries to be initialised. C++ programs without it are
  // not supported.
  if (!torch.cuda_libraries_mapped || !torch.python_mapped) return 0;
  static const InstallFunction install = load_install_function(torch);
  return install ? install() : 1;
}

}  // namespace

extern "C" UVMSIM_EXPORT int uvmsim_kernels_poll(void) {
  static std::atomic<bool> done{false};
  static std::mutex attempt_mutex;
  static thread_local bool attempting = false;

  if (done.load(std::memory_order_acquire)) return 1;
  if (attempting) return 0;
  // Another thread's attempt may need the loader's lock, which this thread may hold, so never wait
  // for that attempt.
  const std::unique_lock lock(attempt_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  attempting = true;
  int result = 1;
  try {
    result = attempt();
  } catch (...) {
    std::fputs("uvmsim: out of memory while CUDA operators were being installed\n", stderr);
  }
  attempting = false;
  if (result) done.store(true, std::memory_order_release);
  return result;
}
