#include "pytorch/interpose/plugin_loader.hpp"

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "preload/library_copies.hpp"
#include "pytorch/interpose/class_layout.hpp"
#include "pytorch/interpose/late_calls.hpp"
#include "pytorch/interpose/torch_hooks.hpp"
#include "pytorch/interpose/torch_probe.hpp"
#include "runtime/log.hpp"

namespace uvm::interpose {
namespace {

constexpr const char* kServesCallsInstead =
    "uvmalloc serves torch's CUDA allocation calls instead, so CUDA tensors may need more memory "
    "than the device has; CPU tensors stay in ordinary memory, and each move to or from a device "
    "copies. For shared moves install a torch that has a plugin (uvmalloc doctor names them); "
    "UVMALLOC_CUDA=0 stops the serving";

// Returns an empty string, or one line that says why torch keeps its own allocators.
std::string load_plugin(const TorchInProcess& torch) {
  // The plugin is compiled with CUDA's headers, whose structures differ between major versions.
  constexpr int kCudaMajor = CUDA_VERSION / 1000;
  if (!torch.cuda_version.empty() &&
      !torch.cuda_version.starts_with(fmt::format("{}.", kCudaMajor))) {
    return fmt::format("torch {} is built for CUDA {}, and uvmalloc needs a torch for CUDA {}",
                       torch.version, torch.cuda_version, kCudaMajor);
  }
  // The plugin would call the allocator of that library.
  if (preload::is_linked_to_another()) {
    return "this program is linked to libuvmalloc.so; preload libuvmalloc_preload.so to serve "
           "torch in it";
  }
  const std::string library = preload::own_path();
  const std::string path =
      fmt::format("{}libuvmalloc_torch_{}_{}.so", library.substr(0, library.rfind('/') + 1),
                  torch.major, torch.minor);
  if (access(path.c_str(), R_OK) != 0) {
    return fmt::format(
        "there is no plugin for torch {} ({} is missing; scripts/build --torch-of PYTHON makes it)",
        torch.version.empty() ? "of unknown version" : torch.version, path);
  }
  if (std::string why_not = why_classes_differ(path, torch.library_dir, torch.version);
      !why_not.empty())
    return why_not;
  if (std::string why_not = take_torch_calls(); !why_not.empty()) return why_not;
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto run = plugin != nullptr
                 ? reinterpret_cast<void (*)()>(dlsym(plugin, "uvmalloc_torch_install"))
                 : nullptr;
  if (run == nullptr) {
    return fmt::format("the plugin for torch {} could not be loaded: {}", torch.version, dlerror());
  }
  run();
  return {};
}

std::string enable_in_torch() {
  // The program itself has requested managed memory, so the driver may be initialised here.
  set_manages_cpu_tensors_at_once();
  const Activation& activation = activate_process_allocator();
  if (activation.allocator == nullptr) return activation.reason;
  if (activation.allocator->inspection().in_forked_child()) return "this is a forked child";
  return load_torch_plugin_late();
}

// Calls `function` in the first copy of this library and returns its result, or `without_it` if
// that copy does not have the function. Returns nullopt if this is the first copy.
template <class Result>
std::optional<Result> ask_earlier_copy(const char* function, Result without_it) {
  const std::string path = preload::earlier_copy();
  if (path.empty()) return std::nullopt;
  void* copy = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  auto call = copy != nullptr ? reinterpret_cast<Result (*)()>(dlsym(copy, function)) : nullptr;
  return call != nullptr ? call() : without_it;
}

}  // namespace

void load_torch_plugin_if_due() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_acquire)) return;
  TorchInProcess torch = find_torch();
  if (!torch.cuda_libraries_mapped) return;
  note_framework();
  if (done.exchange(true) || !preload::earlier_copy().empty()) return;
  if (!process_configuration().configuration.enabled) return;
  // Read this before load_plugin(), which may add this library to the global scope.
  const bool can_serve_calls = preload::is_first_for_calls();
  const std::string why_not = load_plugin(torch);
  if (why_not.empty()) return;
  const bool serves_calls =
      can_serve_calls && process_configuration().configuration.serve_cuda != ServeCuda::kNo;
  if (serves_calls) note_framework_without_plugin();
  log(LogLevel::kError, "{}: {}", why_not,
      serves_calls ? kServesCallsInstead : "torch keeps its own allocators");
  note_inactive(why_not);
}

std::string load_torch_plugin_late() {
  const TorchInProcess torch = find_torch();
  if (!torch.cuda_libraries_mapped) return "there is no torch with CUDA in this process";
  static const std::string why_not = load_plugin(torch);
  return why_not;
}

}  // namespace uvm::interpose

int uvmalloc_load_in_torch() noexcept {
  try {
    if (auto answer = uvm::interpose::ask_earlier_copy("uvmalloc_load_in_torch", 0)) return *answer;
    uvm::interpose::load_torch_plugin_if_due();
  } catch (const std::exception& error) {
    uvm::log(uvm::LogLevel::kError, "torch keeps its own allocators: {}", error.what());
  }
  return uvm::is_plugin_installed();
}

const char* uvmalloc_enable_in_torch() noexcept {
  try {
    if (auto answer = uvm::interpose::ask_earlier_copy<const char*>(
            "uvmalloc_enable_in_torch",
            "another version of libuvmalloc_preload.so is in this process")) {
      return *answer;
    }
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    // Callers may keep a returned string, so the strings are never freed.
    static std::set<std::string> reasons;
    const std::string reason = uvm::interpose::enable_in_torch();
    return reason.empty() ? nullptr : reasons.insert(reason).first->c_str();
  } catch (const std::exception& error) {
    uvm::log(uvm::LogLevel::kError, "torch keeps its own allocators: {}", error.what());
    return "it could not be switched on";
  }
}

int uvmalloc_is_in_torch() noexcept {
  return uvm::is_plugin_installed();
}
