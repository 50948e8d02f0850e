// Entry points of the driver interface by name. They come from the stand-in driver in the same
// folder, never from another driver library in the process.
#include <cuda.h>
#include <dlfcn.h>

#include <string>

#include "sim/cuda/common/library_folder.hpp"
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// The stand-in driver exports this function for this library: cuGetProcAddress_v2 without counting
// a call.
using Lookup = int (*)(const char* name, int version, unsigned long long flags, void** out);

Lookup load_lookup() {
  const std::string path = library_folder() + driver_subfolder() + "/libcuda.so.1";
  void* driver = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr
             ? nullptr
             : reinterpret_cast<Lookup>(dlsym(driver, "uvmsim_cuda_find_entry_point"));
}

cudaError_t find_entry_point(const char* name, void** function, int version,
                             unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  static const Lookup lookup = load_lookup();
  if (name == nullptr || function == nullptr) return fail(cudaErrorInvalidValue);
  *function = nullptr;
  const int found = lookup == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                      : lookup(name, version, flags, function);
  if (result != nullptr) *result = static_cast<cudaDriverEntryPointQueryResult>(found);
  // If the caller passes `result`, which gets the reason, a missing function is not an error.
  return *function != nullptr || result != nullptr ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}

}  // namespace

RT_API cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                               cudaDriverEntryPointQueryResult* result) {
  RT_ENTER;
  return find_entry_point(name, function, kRuntimeVersion, flags, result);
}

RT_API cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                        unsigned long long flags,
                                        cudaDriverEntryPointQueryResult* result) {
  RT_ENTER;
  return find_entry_point(name, function, static_cast<int>(version), flags, result);
}

// ---- for programs that were compiled for a default stream per thread

namespace {

// If a program requests neither kind of default stream, it gets functions for the kind that it was
// compiled for.
unsigned long long per_thread_by_default(unsigned long long flags) {
  constexpr unsigned long long kKinds = cudaEnableLegacyStream | cudaEnablePerThreadDefaultStream;
  return (flags & kKinds) != 0 ? flags : flags | cudaEnablePerThreadDefaultStream;
}

}  // namespace

RT_API cudaGetDriverEntryPoint_ptsz(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  RT_ENTER;
  return find_entry_point(name, function, kRuntimeVersion, per_thread_by_default(flags), result);
}

RT_API cudaGetDriverEntryPointByVersion_ptsz(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  RT_ENTER;
  return find_entry_point(name, function, static_cast<int>(version), per_thread_by_default(flags),
                          result);
}
