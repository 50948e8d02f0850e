#include "preload/device_answers.hpp"

#include <cstdint>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "preload/captures.hpp"
#include "preload/interpose.hpp"

namespace uvm::preload {

void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)() noexcept) {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr && is_framework_installed() &&
      process_configuration().configuration.enabled) {
    ours = activate_process_allocator().allocator;
  }
  if (ours == nullptr || ours->inspection().in_forked_child()) return;
  const int device = current_device();
  if (device < 0 || device >= ours->inspection().runtime().device_count()) return;
  *free_bytes = ours->limits().free_bytes(device, {*free_bytes, *total_bytes});
}

bool is_default_stream(const void* stream) noexcept {
  constexpr std::uintptr_t kLastDefault = 2;  // 0 and 1: legacy; 2: per thread
  return reinterpret_cast<std::uintptr_t>(stream) <= kLastDefault;
}

// The handle does not say which device the stream belongs to, so every device forgets the stream.
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
