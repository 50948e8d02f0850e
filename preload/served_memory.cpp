#include <uvmalloc/preload/served_memory.hpp>

#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include <uvmalloc/allocator/interface.hpp>
#include <uvmalloc/allocator/process/process_allocator.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm::preload {
namespace {

std::atomic<ServedMemory*> the_instance{nullptr};

}  // namespace

bool wants_to_serve() noexcept {
  static const bool kWants = [] {
    try {
      return process_configuration().configuration.serves_cuda;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return kWants;
}

ServedMemory* ServedMemory::existing() noexcept {
  return the_instance.load(std::memory_order_acquire);
}

ServedMemory* ServedMemory::instance() noexcept {
  if (ServedMemory* existing = ServedMemory::existing()) return existing;
  if (!wants_to_serve()) return nullptr;
  try {
    return make();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "allocation calls of CUDA are not served: {}", error.what());
    return nullptr;
  }
}

ServedMemory* ServedMemory::make() {
  // The driver allocates for itself while we make the allocator: these calls are its own.
  thread_local bool is_making = false;
  if (is_making) return nullptr;
  is_making = true;
  static ServedMemory* const kMade = []() -> ServedMemory* {
    CachingManagedAllocator* allocator = activate_process_allocator().allocator;
    if (allocator == nullptr) return nullptr;
    auto* made = new ServedMemory(*allocator);
    the_instance.store(made, std::memory_order_release);
    return made;
  }();
  is_making = false;
  return kMade;
}

ServedMemory::ServedMemory(CachingManagedAllocator& allocator)
    : allocator_(allocator),
      exclusions_(process_configuration().configuration.exclude, &exclusion_errors_),
      deferred_(allocator) {
  for (const std::string& error : exclusion_errors_) log_line(LogLevel::kError, error);
  allocator_.add_pressure_callback([this] { return deferred_.wait_and_free(); });
}

ServedMemory::Shard& ServedMemory::shard_of(const void* address) const {
  return shards_[(reinterpret_cast<std::uintptr_t>(address) >> 9) * 0x9E3779B97F4A7C15u >> 60];
}

void* ServedMemory::allocate(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
                             const void* caller) noexcept {
  const bool is_ours =
      size_bytes != 0 && !allocator_.in_forked_child() && !exclusions_.excludes(size_bytes, caller);
  if (is_ours) {
    try {
      void* address = allocator_.allocate(facade, device, size_bytes, stream);
      try {
        Shard& shard = shard_of(address);
        std::lock_guard lock(shard.mutex);
        shard.blocks[address] = {size_bytes, stream, device, facade};
      } catch (const std::bad_alloc&) {
        allocator_.free(address);
        throw;
      }
      return address;
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, "a request of {} is left to CUDA: {}", format_size(size_bytes),
          error.what());
    }
  }
  return nullptr;
}

ServedMemory::Freed ServedMemory::take(const void* address, Block* out) noexcept {
  if (allocator_.in_forked_child()) return Freed::kNotOurs;
  {
    Shard& shard = shard_of(address);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.blocks.find(address);
    if (found != shard.blocks.end()) {
      *out = found->second;
      shard.blocks.erase(found);
      return Freed::kYes;
    }
  }
  // The driver would free the whole span that begins here.
  try {
    return address != nullptr && allocator_.find(address) ? Freed::kNoBlock : Freed::kNotOurs;
  } catch (const std::exception&) {
    return Freed::kNoBlock;
  }
}

ServedMemory::Freed ServedMemory::free(void* address) noexcept {
  Block block;
  if (const Freed taken = take(address, &block); taken != Freed::kYes) return taken;
  try {
    deferred_.add(block.device, address, block.size_bytes);
  } catch (const std::bad_alloc&) {
    // There is no memory to note it, so the device is waited for at once.
    allocator_.runtime().synchronize_device(block.device);
    allocator_.free(address);
  }
  return Freed::kYes;
}

ServedMemory::Freed ServedMemory::free_async(void* address, int device,
                                             StreamHandle stream) noexcept {
  Block block;
  if (const Freed taken = take(address, &block); taken != Freed::kYes) return taken;
  try {
    if (block.facade != Facade::kDevice || block.device != device || block.stream != stream) {
      allocator_.record_use(address, device, stream);
    }
  } catch (const std::exception&) {
    allocator_.runtime().synchronize_device(device);
  }
  allocator_.free(address);
  return Freed::kYes;
}

void ServedMemory::free_after(int device, const DeferredFrees::Wait& wait) noexcept {
  if (allocator_.in_forked_child() || device >= static_cast<int>(allocator_.devices().size())) {
    wait();
    return;
  }
  deferred_.free_after(device, wait);
}

bool ServedMemory::find(const void* address, Range* out) const noexcept {
  try {
    if (allocator_.in_forked_child()) return false;
    const auto block = allocator_.find(address);
    if (!block || !block->live) return false;
    Shard& shard = shard_of(block->base);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.blocks.find(block->base);
    if (found == shard.blocks.end()) return false;
    *out = {block->base, found->second.size_bytes, found->second.facade};
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace uvm::preload
