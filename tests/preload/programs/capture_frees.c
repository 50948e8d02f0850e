/* Calls cudaFree while a stream captures: in another thread, or in the capturing thread in
 * relaxed mode. The graph must hold the captured work. capture_frees FREES [relaxed] [driver] */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                               \
  do {                                                            \
    const int result = (int)(call);                               \
    if (result != 0) return printf("%s: %d\n", #call, result), 1; \
  } while (0)

static int frees;

static void* allocate_and_free(void* failures) {
  for (int i = 0; i < frees; ++i) {
    void* block = NULL;
    if (cudaMalloc(&block, 1 << 20) != cudaSuccess || cudaFree(block) != cudaSuccess)
      ++*(int*)failures;
  }
  return NULL;
}

static int has(int count, char** words, const char* word) {
  for (int i = 2; i < count; ++i) {
    if (strcmp(words[i], word) == 0) return 1;
  }
  return 0;
}

int main(int count, char** words) {
  frees = atoi(words[1]);
  const int relaxed = has(count, words, "relaxed");
  const int driver = has(count, words, "driver");
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  char* memory;
  char back[64];
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc((void**)&memory, 1 << 20));
  CHECK(cudaMemset(memory, 0, 1 << 20));
  CHECK(cudaDeviceSynchronize());
  const int mode = relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
  for (int round = 0; round < 2; ++round) {
    if (driver)
      CHECK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
    else
      CHECK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
    CHECK(cudaMemsetAsync(memory, 5, 64, stream));
    int failures = 0;
    if (relaxed) {
      allocate_and_free(&failures);
    } else {
      pthread_t other;
      CHECK(pthread_create(&other, NULL, allocate_and_free, &failures));
      CHECK(pthread_join(other, NULL));
    }
    CHECK(failures);
    CHECK(cudaMemsetAsync(memory + 32, 6, 32, stream));
    if (driver)
      CHECK(cuStreamEndCapture(stream, (CUgraph*)&graph));
    else
      CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(back, memory, 64, cudaMemcpyDeviceToHost));
    printf("%d %d\n", back[0], back[63]);
  }
  return 0;
}
