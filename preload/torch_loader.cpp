#include <uvmalloc/preload/torch_loader.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include <fmt/format.h>

#include <uvmalloc/allocator/process_allocator.hpp>
#include <uvmalloc/pytorch/loader/torch_probe.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm::preload {
namespace {

// The folder of this library, with a slash at its end.
std::string own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&load_torch_plugin_if_due), &info);
  std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1);
}

void load_plugin(const TorchInProcess& torch) {
  std::string path =
      fmt::format("{}libuvmalloc_torch_{}_{}.so", own_folder(), torch.major, torch.minor);
  if (access(path.c_str(), R_OK) != 0) {
    log(LogLevel::kError,
        "there is no plugin for torch {} ({} is missing): torch keeps its own allocators",
        torch.version.empty() ? "of unknown version" : torch.version, path);
    return;
  }
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto install = plugin != nullptr
                     ? reinterpret_cast<void (*)()>(dlsym(plugin, "uvmalloc_torch_install"))
                     : nullptr;
  if (install == nullptr) {
    log(LogLevel::kError,
        "the plugin for torch {} could not be loaded: {}: torch keeps its own allocators",
        torch.version, dlerror());
    return;
  }
  install();
}

}  // namespace

void load_torch_plugin_if_due() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_acquire)) return;
  TorchInProcess torch = find_torch();
  if (!torch.cuda_libraries_mapped) return;
  if (done.exchange(true)) return;
  if (process_configuration().configuration.enabled) load_plugin(torch);
}

}  // namespace uvm::preload
