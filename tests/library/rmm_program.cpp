// RMM's adaptors with a resource of uvmalloc as their upstream. It is compiled only: RMM's library
// contains CUDA's static runtime, which the simulated device cannot serve.
#include <rmm/device_buffer.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/cuda_memory_resource.hpp>

void use(uvm::CachingManagedAllocator& allocator, cuda::stream_ref stream) {
  uvm::CudaMemoryResource resource(allocator);
  rmm::device_buffer direct(1024, stream, resource);
  rmm::mr::limiting_resource_adaptor limited(resource, 1 << 20);
  rmm::mr::statistics_resource_adaptor counted(limited);
  rmm::mr::pool_memory_resource pool(counted, 1 << 16);
  rmm::device_buffer pooled(1024, stream, pool);
}
