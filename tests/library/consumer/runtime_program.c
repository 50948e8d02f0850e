/* How a C program with CUDA's runtime library uses uvmalloc without nvcc: CUDA's copies, fills
 * and streams on blocks of the allocator, which is linked statically. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <uvmalloc/uvmalloc.h>

#define CHECK(call)                                                   \
  do {                                                                \
    if ((call) != 0) return fprintf(stderr, "%s failed\n", #call), 1; \
  } while (0)

int main(void) {
  const size_t size_bytes = (size_t)4 << 20;
  uvmalloc_options options = {.struct_bytes = sizeof options, .budget_bytes = (uint64_t)64 << 20};
  uvmalloc_allocator* allocator = NULL;
  cudaStream_t stream = NULL;
  void* source = NULL;
  void* on_device = NULL;
  struct cudaPointerAttributes attributes;
  int again = 0;

  CHECK(uvmalloc_create(&options, &allocator));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(uvmalloc_allocate(allocator, UVMALLOC_PINNED, 0, size_bytes, 0, NULL, &source));
  memset(source, 5, size_bytes);
  for (int round = 0; round < 2; ++round) {
    void* const before = on_device;
    CHECK(uvmalloc_allocate(allocator, UVMALLOC_DEVICE, 0, size_bytes, 0, stream, &on_device));
    CHECK(cudaMemcpyAsync(on_device, source, size_bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(on_device, 6, 1, stream));
    CHECK(uvmalloc_record_use(allocator, source, 0, stream));
    CHECK(cudaPointerGetAttributes(&attributes, on_device));
    if (round == 1) again = on_device == before;
    if (round == 0) CHECK(uvmalloc_free(allocator, on_device)); /* in the order of the stream */
  }
  CHECK(cudaStreamSynchronize(stream));
  printf("first=%d last=%d managed=%d again=%d\n", ((char*)on_device)[0],
         ((char*)on_device)[size_bytes - 1], attributes.type == cudaMemoryTypeManaged, again);
  CHECK(uvmalloc_free(allocator, on_device));
  CHECK(uvmalloc_free(allocator, source));
  CHECK(uvmalloc_forget_stream(allocator, 0, stream));
  CHECK(cudaStreamDestroy(stream));
  CHECK(uvmalloc_destroy(allocator));
  return 0;
}
