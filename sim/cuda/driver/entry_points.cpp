// Entry points by name.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include <uvmalloc/sim/cuda/common/version.hpp>
#include <uvmalloc/sim/cuda/driver/entry.hpp>

using namespace uvmsim;
using namespace uvmsim::cuda;

// Generated with the stubs: every exported name in the order of strcmp.
extern "C" {
struct EntryPoint {
  const char* name;
  void (*address)();
  int implemented;
};
extern const EntryPoint uvmsim_driver_entry_points[];
extern const unsigned long uvmsim_driver_entry_point_count;
}

namespace {

constexpr unsigned long long kPerThreadDefaultStream =
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

const EntryPoint* find(std::string_view name) {
  const EntryPoint* begin = uvmsim_driver_entry_points;
  const EntryPoint* end = begin + uvmsim_driver_entry_point_count;
  const EntryPoint* it = std::lower_bound(
      begin, end, name,
      [](const EntryPoint& entry, std::string_view wanted) { return entry.name < wanted; });
  return it != end && name == it->name ? it : nullptr;
}

struct Introduction {
  std::string_view name;
  int version;
};

// Versions of CUDA that brought a new form of an old function under the same plain name, and those
// after the oldest one modelled, 12.2, that brought a new function. What is not listed here has
// been there since before CUDA 10, or as long as that one (cudaTypedefs.h has them all).
constexpr auto kIntroductions = std::to_array<Introduction>({
    {"cuCheckpointProcessCheckpoint", 12080},
    {"cuCheckpointProcessGetRestoreThreadId", 12080},
    {"cuCheckpointProcessGetState", 12080},
    {"cuCheckpointProcessLock", 12080},
    {"cuCheckpointProcessRestore", 12080},
    {"cuCheckpointProcessUnlock", 12080},
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxFromGreenCtx", 12040},
    {"cuCtxGetDevResource", 12040},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxRecordEvent", 12050},
    {"cuCtxSynchronize_v2", 13000},
    {"cuCtxWaitEvent", 12050},
    {"cuDevResourceGenerateDesc", 12040},
    {"cuDevSmResourceSplitByCount", 12040},
    {"cuDeviceGetDevResource", 12040},
    {"cuDeviceGetHostAtomicCapabilities", 13000},
    {"cuDeviceGetP2PAtomicCapabilities", 13000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuDeviceRegisterAsyncNotification", 12040},
    {"cuDeviceUnregisterAsyncNotification", 12040},
    {"cuEventElapsedTime_v2", 12080},
    {"cuFuncGetName", 12030},
    {"cuFuncGetParamInfo", 12040},
    {"cuFuncIsLoaded", 12040},
    {"cuFuncLoad", 12040},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphConditionalHandleCreate", 12030},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphInstantiate_v2", 11000},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuGreenCtxCreate", 12040},
    {"cuGreenCtxDestroy", 12040},
    {"cuGreenCtxGetDevResource", 12040},
    {"cuGreenCtxGetId", 12090},
    {"cuGreenCtxRecordEvent", 12040},
    {"cuGreenCtxStreamCreate", 12050},
    {"cuGreenCtxWaitEvent", 12040},
    {"cuIpcOpenMemHandle_v2", 11000},
    {"cuKernelGetLibrary", 12050},
    {"cuKernelGetName", 12030},
    {"cuKernelGetParamInfo", 12040},
    {"cuLibraryEnumerateKernels", 12040},
    {"cuLibraryGetKernelCount", 12040},
    {"cuLogsCurrent", 12090},
    {"cuLogsDumpToFile", 12090},
    {"cuLogsDumpToMemory", 12090},
    {"cuLogsRegisterCallback", 12090},
    {"cuLogsUnregisterCallback", 12090},
    {"cuMemAdvise_v2", 12020},
    {"cuMemBatchDecompressAsync", 12060},
    {"cuMemDiscardAndPrefetchBatchAsync", 13000},
    {"cuMemDiscardBatchAsync", 13000},
    {"cuMemGetDefaultMemPool", 13000},
    {"cuMemGetMemPool", 13000},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuMemPrefetchBatchAsync", 13000},
    {"cuMemSetMemPool", 13000},
    {"cuMemcpy3DBatchAsync", 12080},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync", 12080},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuModuleEnumerateFunctions", 12040},
    {"cuModuleGetFunctionCount", 12040},
    {"cuStreamBatchMemOp_v2", 11070},
    {"cuStreamBeginCaptureToGraph", 12030},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCtx_v2", 12050},
    {"cuStreamGetDevice", 12080},
    {"cuStreamGetGreenCtx", 12040},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuStreamWaitValue32_v2", 11070},
    {"cuStreamWaitValue64_v2", 11070},
    {"cuStreamWriteValue32_v2", 11070},
    {"cuStreamWriteValue64_v2", 11070},
    {"cuTensorMapEncodeIm2colWide", 12080},
});

bool existed(std::string_view name, int version) {
  const auto* it = std::find_if(kIntroductions.begin(), kIntroductions.end(),
                                [&](const Introduction& entry) { return entry.name == name; });
  return it == kIntroductions.end() || it->version <= version;
}

// Since then this name means another function.
constexpr int kNewGraphInstantiate = 12000;

// The newest form that existed in `version` and is implemented, else the newest that existed.
const EntryPoint* resolve(const std::string& name, int version) {
  if (name == "cuGraphInstantiate" && version >= kNewGraphInstantiate)
    return find("cuGraphInstantiateWithFlags");
  const EntryPoint* unimplemented = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    const std::string candidate = name + suffix;
    const EntryPoint* entry = find(candidate);
    if (entry == nullptr || !existed(candidate, version)) continue;
    if (entry->implemented != 0) return entry;
    if (unimplemented == nullptr) unimplemented = entry;
  }
  return unimplemented;
}

const EntryPoint* resolve_for_thread_stream(const std::string& name, int version) {
  for (const char* suffix : {"_v2_ptsz", "_v2_ptds", "_ptsz", "_ptds"}) {
    const EntryPoint* entry = find(name + suffix);
    if (entry != nullptr && entry->implemented != 0) return entry;
  }
  return resolve(name, version);
}

}  // namespace

// For the runtime library next to this one: the address, and a CUdriverProcAddressQueryResult.
extern "C" UVMSIM_EXPORT int uvmsim_cuda_find_entry_point(const char* name, int version,
                                                          unsigned long long flags, void** out) {
  const int known_version = std::min(version, driver_version());
  const EntryPoint* entry = (flags & kPerThreadDefaultStream) != 0
                                ? resolve_for_thread_stream(name, known_version)
                                : resolve(name, known_version);
  *out = entry == nullptr ? nullptr : reinterpret_cast<void*>(entry->address);
  return entry != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

CU_API cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult* result) {
  CU_ENTER_ANYTIME;
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int found = uvmsim_cuda_find_entry_point(name, version, flags, out);
  if (result != nullptr) *result = static_cast<CUdriverProcAddressQueryResult>(found);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  CU_ENTER_ANYTIME;
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uvmsim_cuda_find_entry_point(name, version, flags, out);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
