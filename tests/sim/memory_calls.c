/* A program with CUDA runtime calls about memory, as nvcc or the host's compiler builds it. Exits
 * with the number of the check that failed. Compiles as C++, because nvcc takes it as such. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define BYTES ((size_t)5 << 20)

static int checks = 0;

#define CHECK(condition)                                            \
  do {                                                              \
    ++checks;                                                       \
    if (!(condition)) {                                             \
      fprintf(stderr, "check %d failed: %s\n", checks, #condition); \
      return checks;                                                \
    }                                                               \
  } while (0)

int main(void) {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess && count >= 1);

  char* managed = NULL;
  CHECK(cudaMallocManaged((void**)&managed, BYTES, cudaMemAttachGlobal) == cudaSuccess);
  memset(managed, 1, BYTES);

  struct cudaMemLocation device;
  memset(&device, 0, sizeof device);
  device.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemAdvise(managed, BYTES, cudaMemAdviseSetPreferredLocation, device) == cudaSuccess);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(cudaMemPrefetchAsync(managed, BYTES, device, 0, stream) == cudaSuccess);
  int last = -3;
  CHECK(cudaMemRangeGetAttribute(&last, sizeof last, cudaMemRangeAttributeLastPrefetchLocation,
                                 managed, BYTES) == cudaSuccess);
  CHECK(last == 0);

  void* on_device = NULL;
  CHECK(cudaMalloc(&on_device, BYTES) == cudaSuccess);
  CHECK(cudaMemcpyAsync(on_device, managed, BYTES, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(cudaMemsetAsync(managed, 0, BYTES, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(managed[0] == 0 && managed[BYTES - 1] == 0);
  CHECK(cudaMemcpy(managed, on_device, BYTES, cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(managed[0] == 1 && managed[BYTES - 1] == 1);

  void* pinned = NULL;
  CHECK(cudaMallocHost(&pinned, 100) == cudaSuccess);
  CHECK(cudaMemcpy(pinned, on_device, 100, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(((char*)pinned)[99] == 1);

  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventRecord(event, stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);

  struct cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, managed + 7) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeManaged);

  void* too_much = NULL;
  CHECK(cudaMalloc(&too_much, (size_t)1 << 45) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);

  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(on_device) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
  return 0;
}
