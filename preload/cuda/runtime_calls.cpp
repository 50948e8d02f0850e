// The intercepted calls of CUDA's runtime, with the handlers that only the runtime needs.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/types.h>
#include <unistd.h>

#include <fmt/format.h>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "allocator/spans/host_backing.hpp"
#include "preload/cuda/graphs.hpp"
#include "preload/cuda/green_contexts.hpp"
#include "preload/cuda/kernel_words.hpp"
#include "preload/cuda/newer_calls.hpp"
#include "preload/cuda/runtime.hpp"
#include "preload/define_calls.hpp"
#include "preload/memory_uses.hpp"
#include "preload/observed_calls.hpp"
#include "preload/served_calls.hpp"
#include "runtime/log.hpp"

namespace uvm::preload::cuda {
namespace {

// The beginning of cudaPointerAttributes, which all its versions share.
struct PointerAnswer {
  int type;
  int device;
  const void* device_pointer;
  const void* host_pointer;
};

// The driver does not know ordinary memory that a device uses, and torch rejects a device address
// that the driver does not know. So this function reports such memory as managed.
void correct(const void* address, PointerAnswer* answer) {
  constexpr int kUnregistered = 0;  // cudaMemoryTypeUnregistered
  constexpr int kHost = 1;          // cudaMemoryTypeHost
  constexpr int kDevice = 2;        // cudaMemoryTypeDevice
  constexpr int kManaged = 3;       // cudaMemoryTypeManaged
  const auto served = find(address);
  if (served && served->mapped) answer->device = served->mapped->device;
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
  if (ours == nullptr || !reach_ordinary_memory(ours->inspection().devices())) return;
  if (ours->inspection().in_forked_child()) return;
  const auto block = ours->find(address);
  if (block && block->live && block->location.is_device()) {
    *answer = {kManaged, block->location.index, address, address};
  }
}

auto get_attributes(const auto& call, cudaPointerAttributes* out, const void* address) {
  const cudaError_t result = call.forward(out, asked_address(address));
  if (result == cudaSuccess)
    beside(call.name(), [&] { correct(address, reinterpret_cast<PointerAnswer*>(out)); });
  return result;
}

// The process that loaded this library. In its forked children getpid() returns another number.
const pid_t kLoadedIn = getpid();

// Programs call cudaGetDeviceCount to find out whether CUDA is available. If the call fails, logs
// one line that says why.
void explain_device_count(cudaError_t answer) {
  if (answer == cudaSuccess || !is_plugin_installed()) return;
  const CachingManagedAllocator* ours = process_allocator();
  // If a parent initialised the driver, the driver cannot be initialised in its forked children.
  const bool is_forked = (ours != nullptr && ours->inspection().in_forked_child()) ||
                         (answer == cudaErrorInitializationError && getpid() != kLoadedIn);
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

auto get_device_count(const auto& call, int* count) {
  const cudaError_t result = call.forward(count);
  beside(call.name(), [&] { explain_device_count(result); });
  return result;
}

// Handles cudaGetDriverEntryPoint and its variants. Their flags, and the variants for a default
// stream per thread, select other functions of the driver.
auto find_driver_function(const auto& call, const char* name, void** out, auto... rest) {
  const auto result = call.forward(name, out, rest...);
  put_ours(result, out);
  return result;
}

// Reports a kernel launch on a stream of the current device. Not inlined, so that a launch that
// need not be reported ends in a jump to the real function.
[[gnu::noinline]] void note_runtime_launch(const auto& call, const void* symbol, void** arguments,
                                           cudaStream_t stream) noexcept {
  note_launch(call.name(), call.device(), call.order(stream),
              [&] { return words_of_symbol(symbol, {.each = arguments}); });
}
[[gnu::noinline]] void note_runtime_launch(const auto& call, cudaKernel_t kernel, void** arguments,
                                           cudaStream_t stream) noexcept {
  note_launch(call.name(), call.device(), call.order(stream),
              [&] { return words_of(CUkernel{kernel}, {.each = arguments}); });
}

auto launch(const auto& call, auto function, dim3 grid, dim3 block, void** arguments,
            std::size_t shared_bytes, cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(call, function, arguments, stream);
  return call.forward(function, grid, block, arguments, shared_bytes, stream);
}

auto launch_configured(const auto& call, const cudaLaunchConfig_t* configuration,
                       const void* function, void** arguments) {
  if (wants_uses() && configuration != nullptr)
    note_runtime_launch(call, function, arguments, configuration->stream);
  return call.forward(configuration, function, arguments);
}

}  // namespace
}  // namespace uvm::preload::cuda

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
// cuda_runtime_api.h does not declare the first two functions. Compiled code calls them, the second
// one for <<<>>> since CUDA 13. Headers after 13.0 do not declare the last function.
void __cudaUnregisterFatBinary(void** handle);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream);
cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status);

// These two have other parameters in CUDA 11. uvmalloc's functions have the parameters of both
// forms, and forward all of them.
__attribute__((visibility("default"))) cudaError_t uvmalloc_graph_instantiate(
    CUgraphExec* out, CUgraph graph, void* third, void* fourth,
    std::size_t fifth) __asm__("cudaGraphInstantiate");
__attribute__((visibility("default"))) cudaError_t uvmalloc_graph_exec_update(
    CUgraphExec executable, CUgraph graph, void* third,
    void* fourth) __asm__("cudaGraphExecUpdate");
}

cudaError_t uvmalloc_graph_instantiate(CUgraphExec* out, CUgraph graph, void* third, void* fourth,
                                       std::size_t fifth) {
  const Intercepted<Runtime, kCall_cudaGraphInstantiate, decltype(uvmalloc_graph_instantiate),
                    false>
      call{{}, nullptr};
  return instantiate_graph(call, out, graph, third, fourth, fifth);
}

cudaError_t uvmalloc_graph_exec_update(CUgraphExec executable, CUgraph graph, void* third,
                                       void* fourth) {
  const Intercepted<Runtime, kCall_cudaGraphExecUpdate, decltype(uvmalloc_graph_exec_update), false>
      call{{}, nullptr};
  return update_graph(call, executable, graph, third, fourth);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#define CUDA_RUNTIME(name, parameters, forms, handler) \
  UVMALLOC_DEFINE_##forms(Runtime, name, parameters, handler)
#include "preload/calls.def"
