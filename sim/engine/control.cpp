// Implements the C control interface of uvmsim.h on the engine.
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/call_table.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/initialization.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/machine_profile.hpp"

namespace {

using uvmsim::CallRecord;
using uvmsim::CallTable;
using uvmsim::Machine;
using uvmsim::Status;

// If a child was forked after the machine was made, the child has no machine.
bool is_absent() {
  return Machine::lost_in_fork();
}

bool has_device(int device) {
  return !is_absent() && Machine::instance().has_device(device);
}

int result_of(Status status) {
  switch (status) {
    case Status::kOk:
      return UVMSIM_OK;
    case Status::kOutOfMemory:
      return UVMSIM_ERROR_OUT_OF_MEMORY;
    case Status::kIllegalAddress:
      return UVMSIM_ERROR_ADDRESS;
    case Status::kLaunchFailure:
      return UVMSIM_ERROR_LAUNCH;
    case Status::kCaptureUnsupported:
    case Status::kCaptureInvalidated:
    case Status::kCaptureImplicit:
      return UVMSIM_ERROR_CAPTURE;
    default:
      return UVMSIM_ERROR_INVALID;
  }
}

}  // namespace

#define UVMSIM_CONTROL extern "C" UVMSIM_EXPORT

UVMSIM_CONTROL int uvmsim_device_count(void) {
  return is_absent() ? 0 : Machine::instance().device_count();
}

UVMSIM_CONTROL int uvmsim_check_machine(const char* machine, char* fault, size_t capacity) {
  try {
    uvmsim::read_profile(uvmsim::profile_path(machine));
    return UVMSIM_OK;
  } catch (const std::exception& error) {
    if (capacity != 0) std::snprintf(fault, capacity, "%s", error.what());
    return UVMSIM_ERROR_INVALID;
  }
}

UVMSIM_CONTROL int uvmsim_is_forked_child(void) {
  return uvmsim::is_forked_child() ? 1 : 0;
}

UVMSIM_CONTROL int uvmsim_capacity(int device, size_t* out_bytes) {
  if (!has_device(device) || out_bytes == nullptr) return UVMSIM_ERROR_INVALID;
  *out_bytes = Machine::instance().memory().use(device).capacity_bytes;
  return UVMSIM_OK;
}

UVMSIM_CONTROL int uvmsim_set_capacity(int device, size_t bytes) {
  if (!has_device(device)) return UVMSIM_ERROR_INVALID;
  return result_of(Machine::instance().memory().set_capacity(device, bytes));
}

UVMSIM_CONTROL int uvmsim_peak_used(int device, size_t* out_bytes) {
  if (!has_device(device) || out_bytes == nullptr) return UVMSIM_ERROR_INVALID;
  *out_bytes = Machine::instance().memory().use(device).peak_bytes;
  return UVMSIM_OK;
}

UVMSIM_CONTROL int uvmsim_reset_peak_used(int device) {
  if (!has_device(device)) return UVMSIM_ERROR_INVALID;
  Machine::instance().memory().reset_peak_use(device);
  return UVMSIM_OK;
}

UVMSIM_CONTROL int uvmsim_used(int device, size_t* out_unevictable_bytes,
                               size_t* out_managed_bytes) {
  if (!has_device(device)) return UVMSIM_ERROR_INVALID;
  const uvmsim::MemoryUse use = Machine::instance().memory().use(device);
  if (out_unevictable_bytes != nullptr) *out_unevictable_bytes = use.unevictable_bytes;
  if (out_managed_bytes != nullptr) *out_managed_bytes = use.managed_bytes;
  return UVMSIM_OK;
}

static int kernel_of(int device, void* stream, const uvmsim_access* accesses, size_t count,
                     const uvmsim::KernelWork& work) {
  if (!has_device(device) || (accesses == nullptr && count != 0)) return UVMSIM_ERROR_INVALID;
  return result_of(Machine::instance().work().kernel(device, stream, {accesses, count}, work));
}

static int launch_of(int device, void* stream, const uvmsim_access* accesses, size_t count,
                     const uvmsim::KernelWork& work, int (*run)(void* context),
                     void (*release)(void* context), void* context) {
  const std::shared_ptr<void> owned(
      context, release != nullptr ? release : [](void*) {});
  if (!has_device(device) || (accesses == nullptr && count != 0) || run == nullptr)
    return UVMSIM_ERROR_INVALID;
  uvmsim::Kernel kernel{.accesses = {accesses, accesses + count},
                        .work = work,
                        .body = [owned, run] { return run(owned.get()) == 0; }};
  return result_of(Machine::instance().work().launch_kernel(device, stream, std::move(kernel)));
}

static bool is_usable(const uvmsim_arithmetic* arithmetic) {
  return arithmetic != nullptr && arithmetic->type >= 0 &&
         static_cast<std::size_t>(arithmetic->type) < uvmsim::kOperationTypes;
}

static uvmsim::KernelWork work_of(const uvmsim_arithmetic& arithmetic) {
  return {arithmetic.operations, static_cast<uvmsim::OperationType>(arithmetic.type),
          arithmetic.continues != 0};
}

UVMSIM_CONTROL int uvmsim_kernel(int device, void* stream, const uvmsim_access* accesses,
                                 size_t count, uint64_t duration_ns) {
  return kernel_of(device, stream, accesses, count, duration_ns);
}

UVMSIM_CONTROL int uvmsim_kernel_arithmetic(int device, void* stream, const uvmsim_access* accesses,
                                            size_t count, const uvmsim_arithmetic* arithmetic) {
  if (!is_usable(arithmetic)) return UVMSIM_ERROR_INVALID;
  return kernel_of(device, stream, accesses, count, work_of(*arithmetic));
}

UVMSIM_CONTROL int uvmsim_launch(int device, void* stream, const uvmsim_access* accesses,
                                 size_t count, uint64_t duration_ns, int (*run)(void* context),
                                 void (*release)(void* context), void* context) {
  return launch_of(device, stream, accesses, count, duration_ns, run, release, context);
}

UVMSIM_CONTROL int uvmsim_launch_arithmetic(int device, void* stream, const uvmsim_access* accesses,
                                            size_t count, const uvmsim_arithmetic* arithmetic,
                                            int (*run)(void* context),
                                            void (*release)(void* context), void* context) {
  if (!is_usable(arithmetic)) {
    if (release != nullptr) release(context);
    return UVMSIM_ERROR_INVALID;
  }
  return launch_of(device, stream, accesses, count, work_of(*arithmetic), run, release, context);
}

UVMSIM_CONTROL void* uvmsim_device_view(const void* address) {
  return is_absent() ? nullptr : Machine::instance().memory().device_view(address);
}

UVMSIM_CONTROL int uvmsim_residency(const void* address, size_t size_bytes, int location,
                                    size_t* out_bytes) {
  if (is_absent() || out_bytes == nullptr) return UVMSIM_ERROR_INVALID;
  return result_of(
      Machine::instance().placements().residency({address, size_bytes}, location, out_bytes));
}

UVMSIM_CONTROL int uvmsim_advice(const void* address, int* out_preferred, uint64_t* out_accessed_by,
                                 int* out_read_mostly) {
  if (is_absent()) return UVMSIM_ERROR_INVALID;
  uvmsim::Policy policy;
  const Status status = Machine::instance().placements().policy_at(address, &policy);
  if (status != Status::kOk) return result_of(status);
  if (out_preferred != nullptr) *out_preferred = policy.preferred;
  if (out_accessed_by != nullptr) *out_accessed_by = policy.accessed_by;
  if (out_read_mostly != nullptr) *out_read_mostly = policy.read_mostly ? 1 : 0;
  return UVMSIM_OK;
}

UVMSIM_CONTROL void uvmsim_get_counters(uvmsim_counters* out) {
  *out = is_absent() ? uvmsim_counters{} : Machine::instance().counters();
}

UVMSIM_CONTROL void uvmsim_reset_counters(void) {
  if (!is_absent()) Machine::instance().reset_counters();
}

UVMSIM_CONTROL uint64_t uvmsim_call_count(const char* name) {
  return name == nullptr ? 0 : CallTable::instance().calls(name);
}

UVMSIM_CONTROL void uvmsim_each_unimplemented(void (*visit)(const char* name, uint64_t calls,
                                                            void* context),
                                              void* context) {
  CallTable::instance().visit([&](const CallRecord& record) {
    if (record.is_unimplemented() && record.calls() != 0)
      visit(record.name().c_str(), record.calls(), context);
  });
}

UVMSIM_CONTROL int uvmsim_host_used(size_t* out_capacity_bytes, size_t* out_used_bytes,
                                    size_t* out_peak_bytes) {
  if (is_absent()) return UVMSIM_ERROR_INVALID;
  const uvmsim::HostUse use = Machine::instance().memory().host_use();
  if (out_capacity_bytes != nullptr) *out_capacity_bytes = use.capacity_bytes;
  if (out_used_bytes != nullptr) *out_used_bytes = use.used_bytes;
  if (out_peak_bytes != nullptr) *out_peak_bytes = use.peak_bytes;
  return UVMSIM_OK;
}

UVMSIM_CONTROL int uvmsim_host_taken(size_t* out_bytes) {
  if (out_bytes == nullptr) return UVMSIM_ERROR_INVALID;
  Machine* machine = Machine::existing();
  *out_bytes = machine != nullptr ? machine->memory().host_use().used_bytes : 0;
  return UVMSIM_OK;
}

UVMSIM_CONTROL uint64_t uvmsim_kernel_ns(uint64_t bytes, uint64_t operations, int type) {
  if (is_absent() || type < 0 || static_cast<std::size_t>(type) >= uvmsim::kOperationTypes)
    return 0;
  return Machine::instance().work().kernel_ns(bytes, operations,
                                              static_cast<uvmsim::OperationType>(type));
}

UVMSIM_CONTROL uint64_t uvmsim_now_ns(void) {
  return is_absent() ? 0 : Machine::instance().streams().now_ns();
}

UVMSIM_CONTROL void uvmsim_advance_ns(uint64_t nanoseconds) {
  if (!is_absent()) Machine::instance().streams().advance(nanoseconds);
}

UVMSIM_CONTROL int uvmsim_fail_call(const char* name, uint64_t nth, int error) {
  if (name == nullptr || *name == '\0') return UVMSIM_ERROR_INVALID;
  CallTable::instance().record(name).fail_in(nth, error);
  return UVMSIM_OK;
}
