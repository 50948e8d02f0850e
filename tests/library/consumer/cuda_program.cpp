// How a program with CCCL uses uvmalloc: a resource through its interface, in blocks of a stream.
#include <cstdio>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/cuda_memory_resource.hpp>
#include <uvmalloc/registry.hpp>

int main() {
  uvm::RuntimeChoice choice = uvm::open_runtime("auto");
  if (choice.runtime == nullptr) return std::fprintf(stderr, "%s\n", choice.reason.c_str()), 1;
  uvm::Configuration configuration;
  configuration.budget_bytes = std::size_t{64} << 20;
  uvm::CachingManagedAllocator allocator(std::move(choice.runtime), configuration);
  uvm::CudaMemoryResource resource(allocator);
#if CCCL_VERSION < 3001000
  static_assert(
      cuda::mr::async_resource_with<uvm::CudaMemoryResource, cuda::mr::device_accessible>);
#else
  static_assert(cuda::mr::resource_with<uvm::CudaMemoryResource, cuda::mr::device_accessible>);
#endif

  const cuda::stream_ref stream{cudaStream_t{nullptr}};
  void* first = resource.allocate(stream, 1000);
  resource.deallocate(stream, first, 1000);
  void* second = resource.allocate(stream, 1000);
  std::printf("again=%d place=%s\n", second == first,
              uvm::to_string(allocator.find(second)->location).c_str());
  resource.deallocate(stream, second, 1000);
  return 0;
}
