#include <cstdlib>
#include <cstring>

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <uvmalloc/pytorch/plugin/export_hooks.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/out_of_memory.hpp>
#include <uvmalloc/pytorch/plugin/region.hpp>

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
  if (ours != nullptr) forget_block(address);
  if (ours == nullptr || ours->free(address) == FreeResult::kNotOurs) c10::free_cpu(address);
}

c10::DataPtr reported(void* address, std::size_t size_bytes, c10::DeleterFnPtr deleter) {
  c10::profiledCPUMemoryReporter().New(address, size_bytes);
  return {address, address, deleter, c10::Device(c10::kCPU)};
}

// Managed host memory, where there is a device for it; nullptr: use malloc.
CachingManagedAllocator* manager_for(HostMemory wanted, size_t size_bytes) {
  if (wanted == HostMemory::kMalloc) return nullptr;
  static const std::size_t threshold_bytes =
      process_configuration().configuration.host_threshold_bytes;
  if (wanted == HostMemory::kManaged && size_bytes < threshold_bytes) return nullptr;
  CachingManagedAllocator* ours = activate_process_allocator().allocator;
  return ours == nullptr || ours->in_forked_child() ? nullptr : ours;
}

}  // namespace

void delete_block(void* address) {
  forget_block(address);
  allocator().free(address);
}

c10::DataPtr HostFacade::allocate(size_t size_bytes) {
  const HostMemory wanted = host_memory();
  if (CachingManagedAllocator* ours = manager_for(wanted, size_bytes)) {
    try {
      watch_python_pointers();
      void* address = allocate_in_region(
          Facade::kHost, size_bytes, [&] { return ours->allocate(Facade::kHost, 0, size_bytes); });
      return reported(address, size_bytes, &delete_managed);
    } catch (const OutOfMemoryError& error) {
      c10::profiledCPUMemoryReporter().OutOfMemory(size_bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(Facade::kHost, size_bytes),
                       "\n", error.what());
    }
  }
  void* address = c10::alloc_cpu(size_bytes);
  if (wanted != HostMemory::kMalloc) count_unmanaged_host(size_bytes);
  return reported(address, size_bytes, &delete_unmanaged);
}

c10::DeleterFnPtr HostFacade::raw_deleter() const {
  return &delete_any;
}

void HostFacade::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  std::memcpy(destination, source, size_bytes);
}

}  // namespace uvm::torch_plugin
