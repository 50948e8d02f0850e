#include <cstring>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/torch_statistics.hpp>

namespace uvm::torch_plugin {

c10::DataPtr PinnedFacade::allocate(size_t size_bytes) {
  if (activate_process_allocator().allocator == nullptr) {
    uninstall();
    return at::getHostAllocator(c10::kCUDA)->allocate(size_bytes);
  }
  try {
    void* address = allocator().allocate(Facade::kPinned, c10::cuda::current_device(), size_bytes);
    return {address, address, &delete_block, c10::Device(c10::kCPU)};
  } catch (const OutOfMemoryError& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

c10::DeleterFnPtr PinnedFacade::raw_deleter() const {
  return &delete_block;
}

void PinnedFacade::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  std::memcpy(destination, source, size_bytes);
}

bool PinnedFacade::record_event(void* address, void* /*context*/, c10::Stream stream) {
  return allocator().record_use(address, stream.device_index(),
                                c10::cuda::CUDAStream(stream).stream());
}

void PinnedFacade::empty_cache() {
  allocator().release_cached();
}

at::HostStats PinnedFacade::get_stats() {
  return host_stats(allocator().statistics());
}

void PinnedFacade::reset_accumulated_stats() {
  for (int device = 0; device < allocator().runtime().device_count(); ++device) {
    allocator().reset_totals(Facade::kPinned, device);
  }
}

void PinnedFacade::reset_peak_stats() {
  for (int device = 0; device < allocator().runtime().device_count(); ++device) {
    allocator().reset_peaks(Facade::kPinned, device);
  }
}

}  // namespace uvm::torch_plugin
