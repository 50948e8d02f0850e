#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/call_sites.hpp"
#include "pytorch/plugin/early_blocks.hpp"
#include "pytorch/plugin/export_hooks.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/host_device.hpp"
#include "pytorch/plugin/out_of_memory.hpp"
#include "pytorch/plugin/region.hpp"

namespace uvm::torch_plugin {
namespace {

void report_freed(void* address) {
  if (address != nullptr) c10::profiledCPUMemoryReporter().Delete(address);
}

void delete_unmanaged(void* address) {
  report_freed(address);
  c10::free_cpu(address);
}

void delete_managed(void* address) {
  report_freed(address);
  delete_block(address);
}

void delete_any(void* address) {
  report_freed(address);
  CachingManagedAllocator* ours = process_allocator();
  if (!EarlyBlocks::instance().empty()) EarlyBlocks::instance().remove(address);
  if (ours != nullptr) forget_block(address);
  if (ours == nullptr || ours->free(address) == FreeResult::kNotOurs) c10::free_cpu(address);
}

c10::DataPtr reported(void* address, std::size_t size_bytes, c10::DeleterFnPtr deleter) {
  c10::profiledCPUMemoryReporter().New(address, size_bytes);
  return {address, address, deleter, c10::Device(c10::kCPU)};
}

// Whether a request of this size gets managed memory.
bool is_for_managed(HostMemory wanted, size_t size_bytes) {
  if (wanted == HostMemory::kMalloc) return false;
  static const std::size_t threshold_bytes =
      process_configuration().configuration.host_threshold_bytes;
  return wanted == HostMemory::kAlwaysManaged || size_bytes >= threshold_bytes;
}

// Allocates with malloc for a tensor that would be managed if CPU tensors could be managed already.
c10::DataPtr allocate_early(size_t size_bytes) {
  void* address = c10::alloc_cpu(size_bytes);
  const CachingManagedAllocator* ours = process_allocator();
  const bool may_move = ours == nullptr || !ours->inspection().in_forked_child();
  if (address == nullptr || size_bytes < kPageGranularBytes || !may_move)
    return reported(address, size_bytes, &delete_unmanaged);
  try {
    watch_python_pointers();
    EarlyBlocks::instance().add(address, size_bytes);
  } catch (const std::bad_alloc&) {
    return reported(address, size_bytes, &delete_unmanaged);
  }
  return reported(address, size_bytes, &delete_early);
}

}  // namespace

void delete_early(void* address) {
  EarlyBlocks::instance().remove(address);
  delete_unmanaged(address);
}

c10::DataPtr managed_host_data(void* address, std::size_t size_bytes) {
  return reported(address, size_bytes, &delete_managed);
}

void delete_block(void* address) {
  forget_block(address);
  allocator().free(address);
}

c10::DataPtr HostFacade::allocate(size_t size_bytes) {
  const HostMemory wanted = host_memory();
  const bool is_managed = is_for_managed(wanted, size_bytes);
  const std::optional<HostPlace> place =
      is_managed ? place_for_cpu_tensors(wanted == HostMemory::kAlwaysManaged) : std::nullopt;
  if (place) {
    try {
      watch_python_pointers();
      void* address = allocate_in_region(Facade::kHost, size_bytes, [&] {
        return any_region()
                   ? allocate_for_group(Facade::kHost, {place->device, nullptr}, size_bytes)
                   : place->allocator->allocate(Facade::kHost, place->device, size_bytes);
      });
      trace_call_site(*place->allocator, address);
      return managed_host_data(address, size_bytes);
    } catch (const OutOfMemoryError& error) {
      c10::profiledCPUMemoryReporter().OutOfMemory(size_bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(Facade::kHost, size_bytes),
                       "\n", error.what());
    }
  }
  if (wanted != HostMemory::kMalloc) count_unmanaged_host(size_bytes);
  if (is_managed) return allocate_early(size_bytes);
  return reported(c10::alloc_cpu(size_bytes), size_bytes, &delete_unmanaged);
}

c10::DeleterFnPtr HostFacade::raw_deleter() const {
  return &delete_any;
}

void HostFacade::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  std::memcpy(destination, source, size_bytes);
}

}  // namespace uvm::torch_plugin
