#include <uvmalloc/preload/torch_loader.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include <fmt/format.h>

#include <uvmalloc/allocator/process_allocator.hpp>
#include <uvmalloc/preload/torch_hooks.hpp>
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

// Empty, or in one line why torch keeps its own allocators. `install` is the plugin's function.
std::string load_plugin(const TorchInProcess& torch, const char* install) {
  std::string path =
      fmt::format("{}libuvmalloc_torch_{}_{}.so", own_folder(), torch.major, torch.minor);
  if (access(path.c_str(), R_OK) != 0) {
    return fmt::format("there is no plugin for torch {} ({} is missing)",
                       torch.version.empty() ? "of unknown version" : torch.version, path);
  }
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto run = plugin != nullptr ? reinterpret_cast<void (*)()>(dlsym(plugin, install)) : nullptr;
  if (run == nullptr) {
    return fmt::format("the plugin for torch {} could not be loaded: {}", torch.version, dlerror());
  }
  run();
  return {};
}

std::string enable_in_torch() {
  const Activation& activation = activate_process_allocator();
  if (activation.allocator == nullptr) return activation.reason;
  if (activation.allocator->in_forked_child()) return "this is a forked child";
  return load_torch_plugin_late();
}

}  // namespace

void load_torch_plugin_if_due() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_acquire)) return;
  TorchInProcess torch = find_torch();
  if (!torch.cuda_libraries_mapped) return;
  if (done.exchange(true)) return;
  if (!process_configuration().configuration.enabled) return;
  const std::string why_not = load_plugin(torch, "uvmalloc_torch_install");
  if (!why_not.empty()) log(LogLevel::kError, "{}: torch keeps its own allocators", why_not);
}

std::string load_torch_plugin_late() {
  const TorchInProcess torch = find_torch();
  if (!torch.cuda_libraries_mapped) return "there is no torch with CUDA in this process";
  static const std::string why_not = load_plugin(torch, "uvmalloc_torch_install_late");
  return why_not;
}

}  // namespace uvm::preload

const char* uvmalloc_enable_in_torch() {
  if (uvm::is_framework_enabled()) return nullptr;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  // What was returned once stays valid.
  static std::set<std::string> reasons;
  const std::string reason = uvm::preload::enable_in_torch();
  return reason.empty() ? nullptr : reasons.insert(reason).first->c_str();
}

int uvmalloc_is_in_torch() {
  return uvm::is_framework_installed();
}
