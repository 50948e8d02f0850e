// The interposed calls that HIP does not have, or that mean something else there.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/types.h>
#include <unistd.h>

#include <fmt/format.h>

#include "allocator/process/process_allocator.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/cuda/vendor.hpp"
#include "preload/device_answers.hpp"
#include "preload/registered_memory.hpp"
#include "runtime/log.hpp"

namespace uvm::preload {
namespace {

// The beginning of cudaPointerAttributes, as all its versions have it.
struct PointerAnswer {
  int type;
  int device;
  const void* device_pointer;
  const void* host_pointer;
};

// The driver does not know ordinary memory that a device uses, and torch takes no address for a
// device's that the driver does not know. To programs it is what managed memory is.
void tell_place(const void* address, PointerAnswer* answer) {
  constexpr int kUnregistered = 0;  // cudaMemoryTypeUnregistered
  constexpr int kHost = 1;          // cudaMemoryTypeHost
  constexpr int kDevice = 2;        // cudaMemoryTypeDevice
  constexpr int kManaged = 3;       // cudaMemoryTypeManaged
  const auto served = find(address);
  const bool is_pinned = served && served->kind == Kind::kPinned;
  if (is_pinned || RegisteredMemory::instance().contains(address)) {
    *answer = {kHost, answer->device, address, address};
    return;
  }
  if (served && hides_management(*served)) {
    *answer = {kDevice, answer->device, address, nullptr};
    return;
  }
  if (answer->type != kUnregistered) return;
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->host_backing() == HostBacking::kManaged) return;
  if (ours->in_forked_child()) return;
  const auto block = ours->find(address);
  if (block && block->live && block->location.is_device()) {
    *answer = {kManaged, block->location.index, address, address};
  }
}

// The process that loaded this library; its forked children have other numbers.
const pid_t kLoadedIn = getpid();

// `answer` is that of cudaGetDeviceCount, with which programs find out whether there is CUDA. Where
// they cannot have it, one line says why.
void explain_device_count(int answer) {
  constexpr int kInitializationError = 3;  // cudaErrorInitializationError
  if (answer == 0 || !is_framework_installed()) return;
  const CachingManagedAllocator* ours = process_allocator();
  // A driver that was initialised in a parent refuses to be in its children.
  const bool is_forked = (ours != nullptr && ours->in_forked_child()) ||
                         (answer == kInitializationError && getpid() != kLoadedIn);
  if (!is_forked) {
    if (ours == nullptr) activate_process_allocator();
    return;
  }
  log_once(LogLevel::kError, "forked",
           fmt::format(
               "CUDA cannot be used in this process: it was forked after CUDA had been initialised "
               "in its parent{}. Fork before that, or start the process with spawn or forkserver",
               process_configuration().configuration.cpu_tensors == CpuTensors::kManaged
                   ? " (UVMALLOC_CPU=managed initialises CUDA with the first large CPU tensor)"
                   : ""));
}

}  // namespace
}  // namespace uvm::preload

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  const CUresult result = pass_on(NEXT_OF_DRIVER(cuMemGetInfo_v2), free_bytes, total_bytes);
  if (result == CUDA_SUCCESS) {
    beside("cuMemGetInfo_v2", [&] { tell_free_memory(free_bytes, total_bytes, device_of_driver); });
  }
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t result = pass_on(NEXT_OF_RUNTIME(cudaGetDeviceCount), count);
  beside("cudaGetDeviceCount", [&] { explain_device_count(result); });
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out,
                                                        const void* address) {
  const cudaError_t result = pass_on(NEXT_OF_RUNTIME(cudaPointerGetAttributes), out, address);
  if (result == cudaSuccess) {
    beside("cudaPointerGetAttributes",
           [&] { tell_place(address, reinterpret_cast<PointerAnswer*>(out)); });
  }
  return result;
}

// The form of CUDA 3.2 and earlier.
#undef cuStreamDestroy
UVMALLOC_INTERPOSE CUresult cuStreamDestroy(CUstream stream) {
  note_stream_gone(stream);
  return pass_on(NEXT_OF_DRIVER(cuStreamDestroy), stream);
}

UVMALLOC_INTERPOSE CUresult cuStreamDestroy_v2(CUstream stream) {
  note_stream_gone(stream);
  return pass_on(NEXT_OF_DRIVER(cuStreamDestroy_v2), stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
