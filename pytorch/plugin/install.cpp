// Installs the three allocators in torch when the plugin is loaded, inside `import torch` or later.
// Makes no driver call before the program has initialised the driver. So programs that only have
// CPU tensors, or that fork before they use CUDA, behave as without uvmalloc.
#include <pthread.h>

#include <cstdlib>
#include <optional>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>

#include <uvmalloc/groups.hpp>
#include "allocator/group_settings.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "pytorch/interpose/torch_hooks.hpp"
#include "pytorch/plugin/early_blocks.hpp"
#include "pytorch/plugin/export_hooks.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/forced_copy.hpp"
#include "pytorch/plugin/host_device.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

at::HostAllocator* native_pinned() {
  return static_cast<at::HostAllocator*>(interpose::native_pinned_allocator.load());
}

namespace {

// Higher than the priority of every allocator that registers itself by default.
constexpr std::uint8_t kPriority = 2;

c10::Allocator* previous_host = nullptr;

// Returns torch's own pinned allocator, if it was registered before this library was loaded. The
// preload library records later registrations.
at::HostAllocator* registered_pinned() {
  try {
    return at::getHostAllocator(c10::kCUDA);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

NativeAllocations count_native_allocations() {
  NativeAllocations made;
  if (auto* pinned = native_pinned()) {
    made.pinned = static_cast<std::uint64_t>(pinned->get_stats().num_host_alloc);
  }
  native::CUDAAllocator* previous = installed_facades.device->previous();
  if (previous != nullptr && previous->initialized()) {
    for (int device = 0; device < c10::cuda::device_count(); ++device) {
      made.device += static_cast<std::uint64_t>(
          previous->getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocation[0].allocated);
    }
  }
  return made;
}

// The counts before torch destroys its allocators. The report is written after that if uvmalloc was
// active before torch was loaded, because handlers at exit run in reverse order.
std::optional<NativeAllocations> last_native_allocations;

NativeAllocations native_allocations() {
  return last_native_allocations ? *last_native_allocations : count_native_allocations();
}

// Makes torch read its settings while its own allocator is still installed. At the first reading,
// torch compares the settings' backend with the installed allocator, and ours would not match.
void read_allocator_settings() {
  try {
    native::CUDAAllocatorConfig::instance();
  } catch (const std::exception&) {
    // Torch reads the settings again later, and then reports the error.
  }
}

}  // namespace

void count_native_allocations_at_exit() {
  [[maybe_unused]] static const int kRegistered = std::atexit([] {
    // A forked child writes no report.
    if (process_allocator()->inspection().in_forked_child()) return;
    last_native_allocations = count_native_allocations();
  });
}

void install() {
  if (process_allocator() != nullptr) refuse_cuda_in_children();
  if (installed_facades.host != nullptr) return;
  // Install the hooks before any block can be exported.
  install_export_hooks();
  if (native_pinned() == nullptr) interpose::native_pinned_allocator = registered_pinned();
  installed_facades.host = new HostFacade;
  installed_facades.pinned = new PinnedFacade;
  read_allocator_settings();
  installed_facades.device = new DeviceFacade(native::allocator.load());
  previous_host = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, installed_facades.host, kPriority);
  at::setHostAllocator(c10::kCUDA, installed_facades.pinned, kPriority);
  c10::SetAllocator(c10::kCUDA, installed_facades.device, kPriority);
  native::allocator.store(installed_facades.device);
  set_native_allocations(native_allocations);
  // For a torch that is never used: its allocators end before this handler runs, or after it.
  std::atexit([] {
    if (!last_native_allocations) last_native_allocations.emplace();
  });
  pthread_atfork([] { EarlyBlocks::instance().lock(); }, [] { EarlyBlocks::instance().unlock(); },
                 [] {
                   EarlyBlocks::instance().unlock();
                   release_locks_in_child();
                 });
  watch_forced_copies();
  if (names_group(process_configuration().configuration.groups, kDefaultGroup)) ++open_regions;
  set_plugin_installed(true);
  installed_facades.device->init_late();
}

void uninstall() {
  set_plugin_installed(false);
  c10::SetAllocator(c10::kCPU, previous_host, kPriority);
  c10::SetAllocator(c10::kCUDA, installed_facades.device->previous(), kPriority);
  native::allocator.store(installed_facades.device->previous());
  if (native_pinned() != nullptr) at::setHostAllocator(c10::kCUDA, native_pinned(), kPriority);
}

}  // namespace uvm::torch_plugin

extern "C" __attribute__((visibility("default"))) void uvmalloc_torch_install() {
  uvm::torch_plugin::install();
}
