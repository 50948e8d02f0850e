#include "pytorch/plugin/host_device.hpp"

#include <dlfcn.h>

#include <atomic>

#include <c10/core/DeviceType.h>
#include <c10/cuda/CUDAFunctions.h>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"

namespace uvm::torch_plugin {
namespace {

constexpr int kNone = -1;

// The device of CPU tensors. It is chosen once, because all CPU tensors use its pools.
std::atomic<int> chosen_device{kNone};

// Returns `preferred` if it has a context, else the first device that has one, else kNone.
int device_with_context(const DeviceRuntime& runtime, int preferred) {
  if (runtime.has_context(preferred)) return preferred;
  for (int device = 0; device < runtime.device_count(); ++device) {
    if (runtime.has_context(device)) return device;
  }
  return kNone;
}

int choose(int device) {
  int none = kNone;
  return chosen_device.compare_exchange_strong(none, device) ? device : none;
}

// Returns nullptr if uvmalloc cannot be active, or must not be active yet.
CachingManagedAllocator* active_allocator(bool at_once) {
  if (CachingManagedAllocator* ours = process_allocator()) return ours;
  const bool is_initialized = is_driver_initialized();
  if (!is_initialized && !at_once) return nullptr;
  CachingManagedAllocator* ours = activate_process_allocator().allocator;
  if (ours != nullptr && !is_initialized) refuse_cuda_in_children();
  return ours;
}

}  // namespace

void refuse_cuda_in_children() {
  void* torch = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
  if (torch == nullptr) return;
  auto* handle_forks = reinterpret_cast<void (*)(c10::DeviceType)>(
      dlsym(torch, "_ZN5torch5utils37register_fork_handler_for_device_initEN3c1010DeviceTypeE"));
  if (handle_forks != nullptr) handle_forks(c10::kCUDA);
}

std::optional<HostPlace> place_for_cpu_tensors(bool at_once) {
  at_once |= manages_cpu_tensors_at_once();
  CachingManagedAllocator* ours = active_allocator(at_once);
  if (ours == nullptr || ours->inspection().in_forked_child()) return std::nullopt;
  int device = chosen_device.load(std::memory_order_relaxed);
  if (device == kNone) {
    const int current = c10::cuda::current_device();
    device = device_with_context(ours->inspection().runtime(), current);
    // If there is only one device, the program will use it.
    if (device == kNone && (at_once || ours->inspection().runtime().device_count() == 1))
      device = current;
    if (device == kNone) return std::nullopt;
    device = choose(device);
  }
  return HostPlace{ours, device};
}

int device_for_host_memory(int wanted) {
  const int device = chosen_device.load(std::memory_order_relaxed);
  if (device != kNone) return device;
  const int used = device_with_context(process_allocator()->inspection().runtime(), wanted);
  return choose(used != kNone ? used : wanted);
}

int device_for_pinned_memory() {
  const int current = c10::cuda::current_device();
  const int used = device_with_context(process_allocator()->inspection().runtime(), current);
  return used != kNone ? used : current;
}

}  // namespace uvm::torch_plugin
