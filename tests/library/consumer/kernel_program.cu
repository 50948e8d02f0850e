// How a program that nvcc builds uses uvmalloc: kernels on the memory of containers, of a CCCL
// resource if there is one, and of the C interface, all in one allocator.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/allocator.hpp>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/memory_resource.hpp>
#include <uvmalloc/registry.hpp>
#ifdef WITH_CCCL
#include <uvmalloc/cuda_memory_resource.hpp>
#endif

__global__ void scale(float* values, float factor, int count) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < count) values[index] = values[index] * factor + 1.0f;
}

namespace {

constexpr int kCount = 1 << 20;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorName(error));
  std::exit(1);
}

void run(float* values, cudaStream_t stream) {
  scale<<<kCount / 256, 256, 0, stream>>>(values, 2.0f, kCount);
  check(cudaGetLastError());
}

}  // namespace

int main() {
  uvm::RuntimeChoice choice = uvm::open_runtime("auto");
  if (choice.runtime == nullptr) return std::fprintf(stderr, "%s\n", choice.reason.c_str()), 1;
  uvm::Configuration configuration;
  configuration.budget_bytes = std::size_t{64} << 20;
  uvm::CachingManagedAllocator allocator(std::move(choice.runtime), configuration);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  // The host fills a container, and a kernel changes the container in place.
  uvm::ManagedMemoryResource resource(allocator);
  std::pmr::vector<float> container(kCount, 3.0f, &resource);
  run(container.data(), stream);
  check(cudaStreamSynchronize(stream));

  // The C interface takes the same allocator by its address.
  auto* handle = reinterpret_cast<uvmalloc_allocator*>(&allocator);
  void* block = nullptr;
  if (uvmalloc_allocate(handle, UVMALLOC_DEVICE, 0, sizeof(float) * kCount, 0, stream, &block) !=
      UVMALLOC_OK) {
    return std::fprintf(stderr, "%s\n", uvmalloc_last_error()), 1;
  }
  check(
      cudaMemcpyAsync(block, container.data(), sizeof(float) * kCount, cudaMemcpyDefault, stream));
  run(static_cast<float*>(block), stream);
  check(cudaStreamSynchronize(stream));
  const float of_c = static_cast<float*>(block)[kCount - 1];
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, block));
  if (uvmalloc_free(handle, block) != UVMALLOC_OK) return 1;

  float of_cccl = 15.0f;
#ifdef WITH_CCCL
  uvm::CudaMemoryResource by_stream(allocator);
  const cuda::stream_ref ordered{stream};
  auto* values = static_cast<float*>(by_stream.allocate(ordered, sizeof(float) * kCount));
  check(cudaMemsetAsync(values, 0, sizeof(float) * kCount, stream));
  for (int round = 0; round < 4; ++round) run(values, stream);
  check(cudaStreamSynchronize(stream));
  of_cccl = values[kCount / 2];
  by_stream.deallocate(ordered, values, sizeof(float) * kCount);
#endif
  std::printf("container=%.0f c=%.0f cccl=%.0f managed=%d\n", container[1000], of_c, of_cccl,
              attributes.type == cudaMemoryTypeManaged);
  check(cudaStreamDestroy(stream));
  return 0;
}
