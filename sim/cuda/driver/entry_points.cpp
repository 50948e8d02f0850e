// Entry points by name.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

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

// Versions of CUDA that brought a new form of an old function under the same plain name. Where a
// newer form is not listed here it has been the current one since before CUDA 10 (cudaTypedefs.h
// has them all).
constexpr auto kIntroductions = std::to_array<Introduction>({
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuEventElapsedTime_v2", 12080},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphInstantiate_v2", 11000},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuIpcOpenMemHandle_v2", 11000},
    {"cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuStreamBatchMemOp_v2", 11070},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCtx_v2", 12050},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuStreamWaitValue32_v2", 11070},
    {"cuStreamWaitValue64_v2", 11070},
    {"cuStreamWriteValue32_v2", 11070},
    {"cuStreamWriteValue64_v2", 11070},
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
    // The form that was asked for by its full name is no newer form of anything.
    const bool is_derived = *suffix != '\0';
    if (entry == nullptr || (is_derived && !existed(candidate, version))) continue;
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
  const EntryPoint* entry = (flags & kPerThreadDefaultStream) != 0
                                ? resolve_for_thread_stream(name, version)
                                : resolve(name, version);
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
