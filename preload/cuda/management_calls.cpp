// Handlers of NVML's functions. For a device that shares the host's memory (DGX Spark, Jetson),
// NVML returns "not supported" instead of the memory. Then these handlers return the machine's
// memory, and the part that this process holds. Every other result of NVML is unchanged.
#include "preload/cuda/management.hpp"

#include <unistd.h>

#include "preload/define_calls.hpp"
#include "preload/device_answers.hpp"

namespace uvm::preload::cuda {
namespace {

// If `real` is nullptr, NVML is not loaded. forward() then returns 3, which in NVML means "not
// supported".
template <class Fill, class... Arguments>
auto answer_for_shared_memory(const auto& call, Fill fill, Arguments... arguments) {
  auto result = call.forward(arguments...);
  if (result != NVML_ERROR_NOT_SUPPORTED || call.real() == nullptr) return result;
  beside(call.name(), [&] {
    if (const auto memory = shared_memory()) result = fill(*memory);
  });
  return result;
}

template <class Memory>
auto get_shared_memory(const auto& call, NvmlDevice* device, Memory* out) {
  const auto fill = [out](const SharedMemory& memory) {
    if (out == nullptr) return NVML_ERROR_NOT_SUPPORTED;
    out->total = memory.total_bytes;
    out->free = memory.free_bytes;
    out->used = memory.total_bytes - memory.free_bytes;
    if constexpr (requires { out->reserved; }) out->reserved = 0;
    return NVML_SUCCESS;
  };
  return answer_for_shared_memory(call, fill, device, out);
}

// On entry `*count` is the capacity of `out`. On return it is the number of processes: 1 if this
// process holds memory, else 0.
template <class Process>
auto list_processes(const auto& call, NvmlDevice* device, unsigned* count, Process* out) {
  const unsigned room = count != nullptr ? *count : 0;
  const auto fill = [=](const SharedMemory& memory) {
    if (count == nullptr) return NVML_ERROR_NOT_SUPPORTED;
    *count = memory.own_bytes != 0 ? 1 : 0;
    if (*count > room || (*count != 0 && out == nullptr)) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (*count == 0) return NVML_SUCCESS;
    out->pid = static_cast<unsigned>(getpid());
    out->used = memory.own_bytes;
    if constexpr (requires { out->gpu_instance; }) {
      constexpr unsigned kNone = 0xffffffff;  // the device has no instances
      out->gpu_instance = kNone;
      out->compute_instance = kNone;
    }
    return NVML_SUCCESS;
  };
  return answer_for_shared_memory(call, fill, device, count, out);
}

}  // namespace
}  // namespace uvm::preload::cuda

using namespace uvm::preload;
using namespace uvm::preload::cuda;

#define NVML(name, parameters, forms, handler) \
  UVMALLOC_DEFINE_##forms(Management, name, parameters, handler)
#include "preload/calls.def"
