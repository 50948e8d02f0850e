#include "sim/api/kernel_launch.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "sim/api/kernel_plugin.hpp"
#include "sim/engine/kernel_call.hpp"
#include "sim/engine/kernel_registry.hpp"
#include "sim/engine/thread_context.hpp"

namespace uvmsim::api {
namespace {

// Only C++ names are demangled, because a C name such as "f" is also the mangled name of a type.
std::string readable(const char* symbol) {
  if (!std::string_view(symbol).starts_with("_Z")) return symbol;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : symbol;
}

bool is_spin_kernel(const std::string& name) {
  return name.find("spin_kernel") != std::string::npos &&
         name.find("spin_kernel_ms") == std::string::npos;
}

// Translates a plug-in's result for a kernel that the plug-in knows.
Status status_of(int result) {
  switch (result) {
    case UVMSIM_OK:
      return Status::kOk;
    case UVMSIM_ERROR_OUT_OF_MEMORY:
      return Status::kOutOfMemory;
    case UVMSIM_ERROR_ADDRESS:
      return Status::kIllegalAddress;
    case UVMSIM_ERROR_CAPTURE:
      return Status::kCaptureInvalidated;
    default:
      return Status::kLaunchFailure;
  }
}

bool is_capturing(const KernelLaunch& launch) {
  CaptureInfo info;
  return Machine::instance().graphs().capture_info(launch.device, launch.stream, &info) ==
             Status::kOk &&
         info.state == CaptureState::kActive;
}

// While this object lives, the kernel nodes that the thread records refer to `call`.
class Launching {
 public:
  explicit Launching(const KernelCall* call) { ThreadContext::current().kernel_call = call; }
  ~Launching() { ThreadContext::current().kernel_call = nullptr; }
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;
};

}  // namespace

LaunchResult launch_kernel(const KernelLaunch& launch) {
  const char* symbol = KernelRegistry::instance().name_of(launch.function);
  if (symbol == nullptr) return {.kind = LaunchResult::Kind::kUnknownFunction};
  const std::string name = readable(symbol);
  if (is_spin_kernel(name)) {
    const auto cycles = *static_cast<const std::int64_t*>(launch.arguments[0]);
    const std::uint64_t duration_ns = cycles > 0 ? static_cast<std::uint64_t>(cycles) : 0;
    return {LaunchResult::Kind::kLaunched,
            Machine::instance().work().launch_kernel(launch.device, launch.stream,
                                                     {{}, duration_ns, nullptr})};
  }
  std::shared_ptr<const KernelCall> call;
  if (const auto sizes = is_capturing(launch) ? parameter_sizes_in_plugin(symbol) : std::nullopt)
    call = std::make_shared<KernelCall>(launch.function, launch.grid, launch.arguments, *sizes);
  const Launching launching(call.get());
  const int result =
      launch_in_plugin(symbol, launch.device, launch.stream, launch.grid, launch.arguments);
  if (result != UVMSIM_ERROR_INVALID) return {LaunchResult::Kind::kLaunched, status_of(result)};
  if (KernelRegistry::instance().is_first_failure(name)) {
    std::fprintf(stderr,
                 "uvmsim: kernel %s cannot run on the simulated device, which has no code for it\n",
                 name.c_str());
  }
  return {.kind = LaunchResult::Kind::kNoImage};
}

// Captures the kernel on a temporary stream.
LaunchResult set_graph_kernel(GraphExecHandle exec, GraphNodeHandle node, KernelLaunch launch) {
  Machine& machine = Machine::instance();
  launch.stream = machine.streams().create_stream(launch.device, 0, /*blocking=*/false, 0);
  LaunchResult result{.kind = LaunchResult::Kind::kLaunched};
  result.status =
      machine.graphs().begin_capture(launch.device, launch.stream, CaptureMode::kRelaxed);
  GraphHandle captured = nullptr;
  if (result.status == Status::kOk) {
    result = launch_kernel(launch);
    const Status ended = machine.graphs().end_capture(launch.device, launch.stream, &captured);
    if (result.status == Status::kOk) result.status = ended;
  }
  if (captured != nullptr && result.kind == LaunchResult::Kind::kLaunched)
    result.status = machine.graphs().set_exec_kernel(exec, node, captured);
  if (captured != nullptr) machine.graphs().destroy(captured);
  machine.streams().destroy_stream(launch.stream);
  return result;
}

std::optional<std::vector<Parameter>> parameters_of(const void* function) {
  const char* symbol = KernelRegistry::instance().name_of(function);
  const auto sizes = symbol != nullptr ? parameter_sizes_in_plugin(symbol) : std::nullopt;
  if (!sizes) return std::nullopt;
  std::vector<Parameter> parameters;
  std::size_t end = 0;
  for (const std::size_t size_bytes : *sizes) {
    const std::size_t alignment = std::min<std::size_t>(size_bytes & (~size_bytes + 1), 16);
    const std::size_t offset_bytes = (end + alignment - 1) / alignment * alignment;
    parameters.push_back({offset_bytes, size_bytes});
    end = offset_bytes + size_bytes;
  }
  return parameters;
}

Status parameter_of(const void* function, std::size_t index, std::size_t* offset_bytes,
                    std::size_t* size_bytes) {
  if (offset_bytes == nullptr) return Status::kInvalidValue;
  const auto parameters = parameters_of(function);
  if (!parameters) return Status::kInvalidHandle;
  if (index >= parameters->size()) return Status::kInvalidValue;
  *offset_bytes = (*parameters)[index].offset_bytes;
  if (size_bytes != nullptr) *size_bytes = (*parameters)[index].size_bytes;
  return Status::kOk;
}

LaunchResult launch_from_buffer(KernelLaunch launch, std::byte* buffer, std::size_t size_bytes) {
  const auto parameters = parameters_of(launch.function);
  if (!parameters) return {.kind = LaunchResult::Kind::kUnknownFunction};
  std::vector<void*> arguments;
  for (const Parameter& parameter : *parameters) {
    if (parameter.offset_bytes + parameter.size_bytes > size_bytes)
      return {LaunchResult::Kind::kLaunched, Status::kInvalidValue};
    arguments.push_back(buffer + parameter.offset_bytes);
  }
  launch.arguments = arguments.data();
  return launch_kernel(launch);
}

}  // namespace uvmsim::api
