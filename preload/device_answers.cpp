#include "preload/device_answers.hpp"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/inspection.hpp>
#include <uvmalloc/limits.hpp>
#include <uvmalloc/statistics.hpp>
#include "allocator/base/machine_memory.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "preload/captures.hpp"
#include "preload/interpose.hpp"
#include "preload/served_memory.hpp"

namespace uvm::preload {

void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)() noexcept) {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr && is_plugin_installed() && process_configuration().configuration.enabled) {
    ours = activate_process_allocator().allocator;
  }
  if (ours == nullptr || ours->inspection().in_forked_child()) return;
  const int device = current_device();
  if (device < 0 || device >= ours->inspection().runtime().device_count()) return;
  *free_bytes = ours->limits().free_bytes(device, {*free_bytes, *total_bytes});
}

std::optional<SharedMemory> shared_memory() {
  if (!wants_to_serve() && !process_configuration().configuration.enabled) return std::nullopt;
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->inspection().in_forked_child()) {
    struct sysinfo machine {};
    if (sysinfo(&machine) != 0) return std::nullopt;
    const std::size_t total_bytes = std::size_t{machine.totalram} * machine.mem_unit;
    return SharedMemory{total_bytes, std::min(total_bytes, available_host_bytes()), 0};
  }
  const Inspection inspection = ours->inspection();
  const bool is_shared = std::ranges::all_of(
      inspection.devices(), [](const auto& device) { return device.capabilities.integrated; });
  constexpr int kAnyDevice = 0;
  MemoryFigures driver;
  if (!is_shared || !inspection.runtime().memory_figures(kAnyDevice, &driver).ok())
    return std::nullopt;
  const std::size_t total_bytes = driver.total_bytes;
  const std::size_t own_bytes =
      std::min<std::size_t>(ours->statistics().touched_bytes.current, total_bytes);
  const std::size_t free_bytes = ours->limits().free_bytes(kAnyDevice, driver);
  return SharedMemory{total_bytes, std::min(total_bytes - own_bytes, free_bytes), own_bytes};
}

bool is_default_stream(const void* stream) noexcept {
  constexpr std::uintptr_t kLastDefault = 2;  // 0 and 1: legacy; 2: per thread
  return reinterpret_cast<std::uintptr_t>(stream) <= kLastDefault;
}

// The handle does not tell which device the stream belongs to, so forget the stream for every
// device.
void note_stream_gone(void* stream) noexcept {
  if (is_default_stream(stream)) return;
  OpenCaptures::instance().remove({0, stream, 0});
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->inspection().in_forked_child()) return;
  for (int device = 0; device < ours->inspection().runtime().device_count(); ++device) {
    beside("the end of a stream", [&] { ours->streams().forget(device, stream); });
  }
}

}  // namespace uvm::preload
