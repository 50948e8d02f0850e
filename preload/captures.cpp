#include "preload/captures.hpp"

#include <algorithm>

#include "allocator/process/process_allocator.hpp"

namespace uvm::preload {
namespace {

bool is_same(const DeviceStream& one, const DeviceStream& other) {
  return one.handle == other.handle && one.thread == other.thread;
}

}  // namespace

OpenCaptures& OpenCaptures::instance() {
  static auto& captures = *new OpenCaptures;  // never destroyed
  return captures;
}

void OpenCaptures::make_room() {
  const std::lock_guard lock(mutex_);
  streams_.reserve(streams_.size() + room_ + 1);
  ++room_;
}

void OpenCaptures::use_room(const DeviceStream& stream) noexcept {
  const std::lock_guard lock(mutex_);
  --room_;
  if (stream.exists()) streams_.push_back(stream);
}

template <class Ended>
void OpenCaptures::remove_where(Ended ended) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [&](const DeviceStream& stream) {
    if (!ended(stream)) return false;
    CaptureGuard::of_process().end();
    note_capture_end(stream);
    return true;
  });
}

void OpenCaptures::remove(const DeviceStream& stream) noexcept {
  remove_where([&](const DeviceStream& each) { return is_same(each, stream); });
}

void OpenCaptures::remove_all_of(int device) noexcept {
  remove_where([&](const DeviceStream& each) { return each.device == device; });
}

void note_capture_begin(const DeviceStream& stream) {
  if (CachingManagedAllocator* ours = process_allocator()) ours->streams().begin_capture(stream);
}

void note_capture_end(const DeviceStream& stream) noexcept {
  if (CachingManagedAllocator* ours = process_allocator()) ours->streams().end_capture(stream);
}

bool notes_captures() noexcept {
  const CachingManagedAllocator* ours = process_allocator();
  return ours == nullptr || !ours->inspection().in_forked_child();
}

}  // namespace uvm::preload
