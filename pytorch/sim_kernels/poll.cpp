// When to load the kernels, and which: the part of the simulated device's PyTorch support that is
// not linked to torch. One flag says that all is done, one mutex guards the attempt; nothing is
// called under it that waits for another thread of ours.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

#include <uvmalloc/pytorch/sim_kernels/sim_kernels.h>
#include <uvmalloc/pytorch/loader/torch_probe.hpp>

#define UVMSIM_EXPORT __attribute__((visibility("default")))

namespace {

constexpr int kTorchMajor = 2;
constexpr int kTorchMinor = 11;
constexpr const char* kKernelLibrary = "libuvmsim_torch_2_11.so";

using InstallFunction = int (*)();

// The library of the kernels lies next to this one.
std::string kernel_library_path() {
  Dl_info self{};
  if (!dladdr(reinterpret_cast<void*>(&uvmsim_kernels_poll), &self) || !self.dli_fname)
    return kKernelLibrary;
  const std::string path = self.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? kKernelLibrary : path.substr(0, slash + 1) + kKernelLibrary;
}

// Null where the library cannot be loaded, which a line on stderr has then said.
InstallFunction load_install_function() {
  const std::string path = kernel_library_path();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, "uvmsim_torch_install") : nullptr;
  if (!function) {
    const char* reason = dlerror();
    std::fprintf(stderr, "uvmsim: CUDA operators are not available on the simulated device: %s\n",
                 reason ? reason : "unknown error of the loader");
  }
  return reinterpret_cast<InstallFunction>(function);
}

int attempt() {
  const uvm::TorchInProcess torch = uvm::find_torch();
  // libtorch_python is the last of torch's libraries to be initialised; a C++ program without it is
  // not served.
  if (!torch.cuda_libraries_mapped || !torch.python_mapped) return 0;
  if (torch.major != kTorchMajor || torch.minor != kTorchMinor) {
    std::fprintf(stderr,
                 "uvmsim: kernels for torch %d.%d found torch %s in this process; CUDA operators "
                 "are not available "
                 "on the simulated device\n",
                 kTorchMajor, kTorchMinor,
                 torch.version.empty() ? "of unknown version" : torch.version.c_str());
    return 1;
  }
  static const InstallFunction install = load_install_function();
  return install ? install() : 1;
}

}  // namespace

extern "C" UVMSIM_EXPORT int uvmsim_kernels_poll(void) {
  static std::atomic<bool> done{false};
  static std::mutex attempt_mutex;
  static thread_local bool attempting = false;

  if (done.load(std::memory_order_acquire)) return 1;
  if (attempting) return 0;
  // Another thread's attempt may need the loader's lock, which this thread may hold: never wait for
  // it.
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
