// The body of every generated entry point of the driver library, and a call that the stand-in
// cannot implement but can explain.
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

extern "C" int uvmsim_driver_not_implemented(void** record, const char* name);

int uvmsim_driver_not_implemented(void** record, const char* name) {
  auto* call = static_cast<uvmsim::CallRecord*>(__atomic_load_n(record, __ATOMIC_ACQUIRE));
  if (call == nullptr) {
    call = &uvmsim::CallTable::instance().record(name);
    __atomic_store_n(record, call, __ATOMIC_RELEASE);
  }
  if (const auto refused = uvmsim::cuda::refuse(*call)) return *refused;
  call->not_implemented();
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Only CUDA's static runtime uses undocumented tables of the driver. Prints the name of each
// program or library that contains that runtime, once.
CU_API cuGetExportTable(const void** table, const CUuuid*) {
  CU_ENTER_ANYTIME;
  call_record.note_not_implemented();
  if (table != nullptr) *table = nullptr;
  Dl_info caller{};
  const bool is_known = dladdr(__builtin_return_address(0), &caller) != 0;
  const std::string name = is_known && caller.dli_fname != nullptr ? caller.dli_fname : "a library";
  static std::mutex mutex;
  static auto* const named = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (named->insert(name).second) {
    std::fprintf(stderr,
                 "uvmsim: %s is linked with CUDA's static runtime, which cannot use the simulated "
                 "device (cuGetExportTable); link it with the shared one: nvcc -cudart shared\n",
                 name.c_str());
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
