// Declarations of intercepted calls that are newer than the headers this library is compiled with.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

// The names are those of CUDA. NOLINTBEGIN(readability-identifier-naming)
extern "C" {
#if CUDART_VERSION < 13010
cudaError_t cudaExecutionCtxDestroy(struct cudaExecutionContext_st* context);
#endif
#if CUDA_VERSION < 13010
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                               size_t offset, CUmemGenericAllocationHandle handle,
                               size_t handle_offset, size_t bytes, unsigned long long flags);
#endif
#if CUDA_VERSION < 13030
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                       void (*callback)(), void* data);
cudaError_t cudaStreamBeginRecaptureToGraph(cudaStream_t stream, cudaStreamCaptureMode mode,
                                            cudaGraph_t graph,
                                            struct cudaGraphRecaptureCallbackData* callback);
#endif
}
// NOLINTEND(readability-identifier-naming)
