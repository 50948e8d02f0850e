#include "allocator/inspection/out_of_memory_report.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/errors.hpp>
#include "allocator/statistics/holders_table.hpp"
#include "runtime/log.hpp"

namespace uvm {

void OutOfMemoryReport::throw_if_broken(const Request& request, const Refusal& refusal) {
  switch (refusal.status.error) {
    case RuntimeError::kNone:
    case RuntimeError::kNotReady:
    case RuntimeError::kOutOfMemory:
    case RuntimeError::kCapture:
      return;
    default:
      throw std::runtime_error(
          fmt::format("uvmalloc: a request for {} ({} memory, device {}) failed: {}",
                      format_size(request.requested_bytes), to_string(request.facade),
                      request.device, refusal.status.text()));
  }
}

// Returns advice after the driver, or for ordinary memory the kernel, has refused a span.
std::string OutOfMemoryReport::advice_on_driver(const RuntimeStatus& status) const {
  if (status.error != RuntimeError::kOutOfMemory) return "";
  const Statistics now = introspection_.statistics();
  const std::size_t unused_bytes =
      now.budget_bytes - std::min<std::size_t>(now.touched_bytes.current, now.budget_bytes);
  return fmt::format(
      "{} of the budget are unused, so the process has no address space left (this allocator has "
      "reserved {}; see ulimit -v), or the driver has no memory for its own records. To reserve "
      "less, set a smaller {}, or make fewer allocators. ",
      format_size(unused_bytes), format_size(now.span_bytes.current),
      machine_.configuration.name_of("UVMALLOC_SPAN_SIZE", "span_bytes"));
}

std::string OutOfMemoryReport::advice(const Request& request, const Refusal& refusal) const {
  const Configuration& settings = machine_.configuration;
  if (request.requested_bytes > kLargestRequest) {
    return fmt::format("A block can have at most {}. Check the requested size.",
                       format_size(kLargestRequest));
  }
  std::string who;
  std::string more;
  bool exceeds_limits = false;
  std::size_t device_limit_bytes = 0;
  bool is_programs_budget = false;
  {
    const HeapGuard heap(state_);
    exceeds_limits = limits::exceeds(heap, request);
    device_limit_bytes = heap->device_limits[static_cast<std::size_t>(request.device)];
    is_programs_budget = heap->budget_source == BudgetSource::kProgram;
  }
  switch (refusal.by) {
    case RefusedBy::kBudget:
      more = fmt::format("To allow more, raise {}. ",
                         is_programs_budget ? "the budget that the program has set"
                                            : settings.name_of("UVMALLOC_BUDGET", "budget_bytes"));
      break;
    case RefusedBy::kDeviceLimit:
      who = fmt::format("The limit of device {} is {}. ", request.device,
                        format_size(device_limit_bytes));
      more = fmt::format("To allow more, raise {}, or the limit that the program has set. ",
                         settings.name_of("UVMALLOC_DEVICE_BUDGET", "device_budget_bytes"));
      break;
    case RefusedBy::kSpillLimit:
      more = spill_limit_.way_to_spill() + " ";
      break;
    case RefusedBy::kDriver:
    case RefusedBy::kNobody:
      who = "The driver refused more memory. ";
      more = advice_on_driver(refusal.status);
      break;
  }
  return fmt::format("{}{}{}To need less, {}.", who,
                     exceeds_limits
                         ? "The request exceeds the limit, so freeing memory cannot help. "
                         : "All cached memory was given back, and the request was retried. ",
                     more,
                     settings.name_of("use smaller batches or free memory first",
                                      "request less or free blocks first"));
}

void OutOfMemoryReport::raise(const Request& request, const Refusal& refusal) {
  TraceBlock traced = request.traced(nullptr, request.size_bytes);
  machine_.trace.out_of_memory(machine_.trace.now(), traced, refusal.status);
  const std::string table = holders_table(introspection_.statistics());
  {
    const HeapGuard heap(state_);
    ++heap->statistics.figures().out_of_memory;
    ++heap->statistics.service_of(request.facade, request.device).out_of_memory;
  }
  if (request.facade == Facade::kDevice) spill_limit_.note_error(request.device);
  throw OutOfMemoryError(
      request.requested_bytes,
      fmt::format(
          "uvmalloc: out of memory: a request for {} ({} memory, device {}) failed: {}.\n{}{}",
          format_size(request.requested_bytes), to_string(request.facade), request.device,
          refusal.status.ok() ? "no memory" : std::string(refusal.status.native_name), table,
          advice(request, refusal)),
      refusal.by == RefusedBy::kBudget || refusal.by == RefusedBy::kDeviceLimit ||
          refusal.by == RefusedBy::kSpillLimit);
}

}  // namespace uvm
