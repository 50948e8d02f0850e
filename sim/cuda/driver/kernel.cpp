// Kernels: their parameters and launches. A handle is the kernel's host function, as in the
// runtime. There are no modules.
#include "sim/api/graphs.hpp"
#include "sim/api/kernel_launch.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

CUresult result_of(const LaunchResult& result) {
  switch (result.kind) {
    case LaunchResult::Kind::kLaunched:
      return finish(result.status);
    case LaunchResult::Kind::kUnknownFunction:
      return CUDA_ERROR_INVALID_HANDLE;
    case LaunchResult::Kind::kNoImage:
      break;
  }
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// The arguments are given one by one, or in one buffer described by `extra`.
CUresult launch(KernelLaunch kernel, void** arguments, void** extra) {
  if (arguments != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  kernel.arguments = arguments;
  if (extra == nullptr) return result_of(launch_kernel(kernel));
  std::byte* buffer = nullptr;
  std::size_t size_bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<std::byte*>(extra[1]);
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size_bytes = *static_cast<std::size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return result_of(launch_from_buffer(kernel, buffer, size_bytes));
}

}  // namespace

CU_API cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset_bytes,
                          size_t* size_bytes) {
  CU_ENTER;
  return finish(parameter_of(function, index, offset_bytes, size_bytes));
}

CU_API cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset_bytes,
                            size_t* size_bytes) {
  CU_ENTER;
  return finish(parameter_of(kernel, index, offset_bytes, size_bytes));
}

CU_API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                      CUstream stream, void** arguments, void** extra) {
  CU_ENTER_CONTEXT;
  return launch(
      {device, stream, function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}}, nullptr},
      arguments, extra);
}

CU_API cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned, CUstream stream, void** arguments) {
  CU_ENTER_CONTEXT;
  return launch(
      {device, stream, function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}}, nullptr},
      arguments, nullptr);
}

CU_API cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction function, void** arguments,
                        void** extra) {
  CU_ENTER_CONTEXT;
  if (configuration == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUlaunchConfig& given = *configuration;
  return launch({device,
                 given.hStream,
                 function,
                 {{given.gridDimX, given.gridDimY, given.gridDimZ},
                  {given.blockDimX, given.blockDimY, given.blockDimZ}},
                 nullptr},
                arguments, extra);
}

CU_API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  CU_ENTER;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const KernelCall> call;
  if (const Status status = kernel_call(node, &call); status != Status::kOk) return finish(status);
  *out = {};
  out->func = static_cast<CUfunction>(const_cast<void*>(call->function));
  out->gridDimX = call->grid.blocks[0];
  out->gridDimY = call->grid.blocks[1];
  out->gridDimZ = call->grid.blocks[2];
  out->blockDimX = call->grid.threads[0];
  out->blockDimY = call->grid.threads[1];
  out->blockDimZ = call->grid.threads[2];
  out->kernelParams = const_cast<void**>(call->arguments.data());
  return CUDA_SUCCESS;
}

CU_API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                         const CUDA_KERNEL_NODE_PARAMS* parameters) {
  CU_ENTER_CONTEXT;
  if (parameters == nullptr || parameters->kernelParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS& given = *parameters;
  const void* function = given.func != nullptr ? static_cast<const void*>(given.func) : given.kern;
  return result_of(set_graph_kernel(exec, node,
                                    {device,
                                     nullptr,
                                     function,
                                     {{given.gridDimX, given.gridDimY, given.gridDimZ},
                                      {given.blockDimX, given.blockDimY, given.blockDimZ}},
                                     given.kernelParams}));
}

CU_API cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  CU_ENTER;
  const Status status = machine().graphs().update_exec(exec, graph);
  if (info != nullptr) {
    *info = {};
    if (status != Status::kOk) info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  return status == Status::kIllegalState ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : finish(status);
}

CU_API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  CU_ENTER;
  return finish(child_graph(node, out_of(out)));
}
