#include "runtime/external/external_runtime.hpp"

#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <uvmalloc/registry.hpp>
#include "runtime/external/operations_table.hpp"

namespace uvm::external {
namespace {

static_assert(static_cast<int>(Advice::kSetReadMostly) == UVMALLOC_RUNTIME_SET_READ_MOSTLY);
static_assert(static_cast<int>(Advice::kUnsetReadMostly) == UVMALLOC_RUNTIME_UNSET_READ_MOSTLY);
static_assert(static_cast<int>(Advice::kSetPreferredLocation) ==
              UVMALLOC_RUNTIME_SET_PREFERRED_LOCATION);
static_assert(static_cast<int>(Advice::kUnsetPreferredLocation) ==
              UVMALLOC_RUNTIME_UNSET_PREFERRED_LOCATION);
static_assert(static_cast<int>(Advice::kSetAccessedBy) == UVMALLOC_RUNTIME_SET_ACCESSED_BY);
static_assert(static_cast<int>(Advice::kUnsetAccessedBy) == UVMALLOC_RUNTIME_UNSET_ACCESSED_BY);

static_assert(static_cast<int>(PointerKind::kUnknown) == UVMALLOC_RUNTIME_POINTER_UNKNOWN);
static_assert(static_cast<int>(PointerKind::kHost) == UVMALLOC_RUNTIME_POINTER_HOST);
static_assert(static_cast<int>(PointerKind::kDevice) == UVMALLOC_RUNTIME_POINTER_DEVICE);
static_assert(static_cast<int>(PointerKind::kManaged) == UVMALLOC_RUNTIME_POINTER_MANAGED);

// `kind` is what error_kind() of the table returned for a code other than 0.
RuntimeError translate(int kind) {
  switch (kind) {
    case UVMALLOC_RUNTIME_NOT_READY:
      return RuntimeError::kNotReady;
    case UVMALLOC_RUNTIME_OUT_OF_MEMORY:
      return RuntimeError::kOutOfMemory;
    case UVMALLOC_RUNTIME_NOT_SUPPORTED:
      return RuntimeError::kNotSupported;
    case UVMALLOC_RUNTIME_INVALID_VALUE:
      return RuntimeError::kInvalidValue;
    case UVMALLOC_RUNTIME_NO_DEVICE:
      return RuntimeError::kNoDevice;
    case UVMALLOC_RUNTIME_NOT_USABLE:
      return RuntimeError::kNotUsable;
    case UVMALLOC_RUNTIME_CAPTURE:
      return RuntimeError::kCapture;
    default:
      return RuntimeError::kOther;
  }
}

int number_of(Place place) {
  return place.is_device() ? place.index : UVMALLOC_RUNTIME_HOST;
}

}  // namespace

std::unique_ptr<DeviceRuntime> ExternalRuntime::open(const std::string& name,
                                                     const uvmalloc_runtime_operations& operations,
                                                     void* context, std::string* reason) {
  std::unique_ptr<ExternalRuntime> runtime(new ExternalRuntime(name, operations, context));
  RuntimeStatus status = runtime->status(operations.initialize(context), "initialize");
  if (status.ok()) {
    status = runtime->status(operations.device_count(context, &runtime->devices_), "device_count");
  }
  if (!status.ok()) {
    *reason = status.text();
    return nullptr;
  }
  if (runtime->devices_ <= 0) {
    *reason = "it has no device";
    return nullptr;
  }
  return runtime;
}

RuntimeStatus ExternalRuntime::status(int code, std::string_view call) const {
  if (code == 0) return {};
  const char* name = operations_.error_name(context_, code);
  return {translate(operations_.error_kind(context_, code)), code,
          name != nullptr ? name : "unknown error", call};
}

template <class... Parameters, class... Arguments>
RuntimeStatus ExternalRuntime::call(std::string_view name,
                                    int (*operation)(void*, int, Parameters...), int device,
                                    Arguments... arguments) const {
  if (!has_device(device)) return {RuntimeError::kNoDevice, 0, "no such device", name};
  return status(operation(context_, device, arguments...), name);
}

#define UVM_ARGUMENTS(...) __VA_ARGS__
#define UVM_PASSED(constant, name, parameters, arguments)          \
  RuntimeStatus ExternalRuntime::name parameters const {           \
    return call(#name, operations_.name, UVM_ARGUMENTS arguments); \
  }
#include "runtime/calls.def"
#undef UVM_ARGUMENTS

RuntimeStatus ExternalRuntime::describe(int device, DeviceDescription* out) const {
  uvmalloc_runtime_device given{};
  given.struct_bytes = sizeof given;
  const RuntimeStatus outcome = call("describe", operations_.describe, device, &given);
  if (!outcome.ok()) return outcome;
  out->name.assign(given.name, strnlen(given.name, sizeof given.name));
  out->total_bytes = given.total_bytes;
  DeviceCapabilities& can = out->capabilities;
  can.managed_memory = given.managed_memory != 0;
  can.concurrent_managed_access = given.concurrent_managed_access != 0;
  can.migrates_on_fault = given.migrates_on_fault != 0;
  can.pageable_memory_access = given.pageable_memory_access != 0;
  can.host_page_tables = given.host_page_tables != 0;
  can.direct_host_access = given.direct_host_access != 0;
  can.integrated = given.integrated != 0;
  can.memory_is_host_node = given.memory_is_host_node != 0;
  can.discard = given.discard != 0 && operations_.discard != nullptr;
  can.compute_major = given.compute_major;
  can.compute_minor = given.compute_minor;
  return {};
}

RuntimeStatus ExternalRuntime::memory_figures(int device, MemoryFigures* out) const {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  const RuntimeStatus outcome =
      call("memory_figures", operations_.memory_figures, device, &free_bytes, &total_bytes);
  *out = {free_bytes, total_bytes};
  return outcome;
}

bool ExternalRuntime::has_context(int device) const {
  if (!has_device(device)) return false;
  return operations_.has_context == nullptr || operations_.has_context(context_, device) != 0;
}

RuntimeStatus ExternalRuntime::pointer_attributes(const void* address,
                                                  PointerAttributes* out) const {
  *out = {};
  uvmalloc_runtime_pointer given{UVMALLOC_RUNTIME_POINTER_UNKNOWN, -1};
  const RuntimeStatus outcome =
      status(operations_.pointer_attributes(context_, address, &given), "pointer_attributes");
  if (!outcome.ok() || given.kind < UVMALLOC_RUNTIME_POINTER_UNKNOWN ||
      given.kind > UVMALLOC_RUNTIME_POINTER_MANAGED) {
    return outcome;
  }
  *out = {static_cast<PointerKind>(given.kind), given.device};
  return {};
}

RuntimeStatus ExternalRuntime::advise(int device, void* address, std::size_t size_bytes,
                                      Advice advice, Place place) const {
  if (operations_.advise == nullptr) return {};
  return call("advise", operations_.advise, device, address, size_bytes, static_cast<int>(advice),
              number_of(place));
}

RuntimeStatus ExternalRuntime::prefetch(int device, void* address, std::size_t size_bytes,
                                        Place destination, StreamHandle stream) const {
  if (operations_.prefetch == nullptr) return {};
  return call("prefetch", operations_.prefetch, device, address, size_bytes, number_of(destination),
              stream);
}

RuntimeStatus ExternalRuntime::discard(int device, void* address, std::size_t size_bytes,
                                       StreamHandle stream) const {
  if (operations_.discard == nullptr) {
    return {RuntimeError::kNotSupported, 0, "the runtime has no such operation", "discard"};
  }
  return call("discard", operations_.discard, device, address, size_bytes, stream);
}

RuntimeStatus ExternalRuntime::is_capturing(int device, StreamHandle stream, bool* out) const {
  *out = false;
  if (operations_.is_capturing == nullptr) return {};
  int capturing = 0;
  const RuntimeStatus outcome =
      call("is_capturing", operations_.is_capturing, device, stream, &capturing);
  *out = capturing != 0;
  return outcome;
}

std::string add_external_runtime(const char* name, const uvmalloc_runtime_operations* operations,
                                 void* context) {
  const std::string own_name = name != nullptr ? name : "";
  if (own_name.empty() || own_name == "auto" || own_name.find('/') != std::string::npos) {
    return fmt::format(
        "the runtime's name is '{}'; accepted: a name that is not empty, not 'auto', and has no "
        "slash",
        own_name);
  }
  if (const std::string fault = fault_of(operations); !fault.empty()) {
    return fmt::format("the operations table of the runtime '{}' {}", own_name, fault);
  }
  RuntimeQuestions questions;
  if (operations->is_present != nullptr) {
    const auto is_present = operations->is_present;
    const auto is_initialized = operations->is_initialized;
    questions.is_present = [=] { return is_present(context) != 0; };
    questions.is_initialized = [=] { return is_initialized(context) != 0; };
  }
  const auto open = [own_name, table = *operations, context](std::string* reason) {
    return ExternalRuntime::open(own_name, table, context, reason);
  };
  if (add_runtime(own_name, open, std::move(questions))) return "";
  return fmt::format("the runtime's name '{}' is taken; accepted: any other than {}", own_name,
                     fmt::join(runtime_names(), ", "));
}

}  // namespace uvm::external
