#include "tools/replay/uvmalloc_target.hpp"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/registry.hpp>

namespace uvm::replay {

UvmallocTarget::UvmallocTarget(const Configuration& configuration, int devices) {
  RuntimeChoice choice = open_runtime(configuration.runtime);
  if (choice.runtime == nullptr) throw std::runtime_error(choice.reason);
  if (const int present = choice.runtime->device_count(); present < devices) {
    throw std::runtime_error(
        fmt::format("the trace is of {} devices; this machine has {}", devices, present));
  }
  allocator_ = std::make_unique<CachingManagedAllocator>(std::move(choice.runtime), configuration);
}

UvmallocTarget::~UvmallocTarget() {
  for (const DeviceStream& stream : streams_) {
    if (stream.handle == nullptr) continue;
    allocator_->inspection().runtime().synchronize_stream(stream.device, stream.handle);
    allocator_->inspection().runtime().destroy_stream(stream.device, stream.handle);
  }
}

void UvmallocTarget::prepare(std::span<const ReplayStream> streams) {
  for (const ReplayStream& stream : streams) {
    DeviceStream mine{stream.device, nullptr};
    if (stream.handle != 0) {
      const RuntimeStatus status =
          allocator_->inspection().runtime().create_stream(stream.device, &mine.handle);
      if (!status.ok()) throw std::runtime_error(status.text());
    }
    streams_.push_back(mine);
  }
}

void* UvmallocTarget::allocate(Facade facade, int device, std::size_t size_bytes, int stream) {
  try {
    return allocator_->allocate(facade, device, size_bytes, stream_at(stream).handle);
  } catch (const OutOfMemoryError&) {
    return nullptr;
  }
}

bool UvmallocTarget::free(void* address) {
  return allocator_->free(address) == FreeResult::kFreed;
}

bool UvmallocTarget::use(void* address, int stream) {
  const DeviceStream& user = stream_at(stream);
  return allocator_->record_use(address, user.device, user.handle);
}

bool UvmallocTarget::move(void* address, Place source, Place destination, int stream) {
  MoveRequest move;
  move.source = source;
  move.destination = destination;
  move.stream_device = stream_at(stream).device;
  move.stream = stream_at(stream).handle;
  move.held = false;
  return allocator_->move(address, move) != nullptr;
}

}  // namespace uvm::replay
