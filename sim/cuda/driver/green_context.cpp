// Green contexts: contexts with a part of a device's multiprocessors.
#include "sim/cuda/common/green_contexts.hpp"

#include "sim/cuda/driver/entry.hpp"
#include "sim/engine/contexts.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

CU_API cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  return finish(whole_device(device, type, resource));
}

CU_API cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count,
                                   const CUdevResource* input, CUdevResource* rest, unsigned,
                                   unsigned least) {
  CU_ENTER;
  return finish(split_by_count(groups, count, input, rest, least));
}

CU_API cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* parts,
                                 unsigned count) {
  CU_ENTER;
  return finish(describe(parts, count, description));
}

CU_API cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device,
                        unsigned flags) {
  CU_ENTER;
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  return finish(create_green_context(device, description, reinterpret_cast<void**>(context)));
}

CU_API cuGreenCtxDestroy(CUgreenCtx context) {
  CU_ENTER;
  return finish(destroy_green_context(context));
}

CU_API cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx context) {
  CU_ENTER;
  const int number = green_context_of(context);
  if (number == kNoContext) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = context_of(number);
  return CUDA_SUCCESS;
}

CU_API cuGreenCtxGetDevResource(CUgreenCtx context, CUdevResource* out, CUdevResourceType type) {
  CU_ENTER;
  return finish(part_of(context, type, out));
}

CU_API cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  CU_ENTER;
  return finish(create_green_stream(context, flags, priority, reinterpret_cast<void**>(stream)));
}

CU_API cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* context) {
  CU_ENTER_CONTEXT;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = machine().streams().find_stream(device, stream);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *context = Contexts::is_green(found->context)
                 ? static_cast<CUgreenCtx>(Contexts::handle_of(found->context))
                 : nullptr;
  return CUDA_SUCCESS;
}
