// The body of every generated entry point of the runtime library.
#include "sim/cuda/runtime/entry.hpp"

extern "C" int uvmsim_runtime_not_implemented(void** record, const char* name);

int uvmsim_runtime_not_implemented(void** record, const char* name) {
  auto* call = static_cast<uvmsim::CallRecord*>(__atomic_load_n(record, __ATOMIC_ACQUIRE));
  if (call == nullptr) {
    call = &uvmsim::CallTable::instance().record(name);
    __atomic_store_n(record, call, __ATOMIC_RELEASE);
  }
  if (const auto refused = uvmsim::cuda::refuse(*call)) {
    return uvmsim::cuda::fail(static_cast<cudaError_t>(*refused));
  }
  call->not_implemented();
  return uvmsim::cuda::fail(cudaErrorNotSupported);
}
