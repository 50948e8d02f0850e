// Entry points of the driver interface by name: asked of the stand-in next to this one, never of
// whatever driver library the process would find.
#include <cuda.h>
#include <dlfcn.h>

#include <string>

#include "sim/cuda/common/library_folder.hpp"
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// What the stand-in driver exports for this purpose: cuGetProcAddress_v2 without being counted as a
// call of it.
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
  // With a place for the reason, its absence is no error.
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

// ---- as programs have them that were compiled for a default stream per thread

namespace {

// A program that asks for neither kind of default stream gets the functions of its own.
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
