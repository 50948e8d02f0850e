// The body of every generated entry point of the driver library, and a call that the stand-in
// cannot implement but can explain.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
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

namespace {

// The private table of CUDA's runtime. Only runtimes request it, such as those of CUDA 12.9, 13.0
// and 13.5.
constexpr unsigned char kTableOfTheRuntime[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                                  0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};

}  // namespace

// The stand-in has no private tables. A call means that a program or library contains CUDA's static
// runtime, and that the auditor has not replaced this runtime (sim/audit/static_runtime.h). Prints
// the name of each such program or library once.
CU_API cuGetExportTable(const void** table, const CUuuid* id) {
  CU_ENTER_ANYTIME;
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (std::memcmp(id->bytes, kTableOfTheRuntime, sizeof kTableOfTheRuntime) != 0)
    return CUDA_ERROR_NOT_FOUND;
  call_record.note_not_implemented();
  Dl_info caller{};
  const bool is_known = dladdr(__builtin_return_address(0), &caller) != 0;
  const std::string name = is_known && caller.dli_fname != nullptr ? caller.dli_fname : "a library";
  static std::mutex mutex;
  static auto* const named = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (named->insert(name).second) {
    std::fprintf(stderr,
                 "uvmsim: %s contains CUDA's static runtime, which accepts only NVIDIA's driver; "
                 "the simulator replaces that runtime if it is of CUDA 13 and, in a stripped file, "
                 "of a version that the simulator knows; otherwise link with the shared one: "
                 "nvcc -cudart shared\n",
                 name.c_str());
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
