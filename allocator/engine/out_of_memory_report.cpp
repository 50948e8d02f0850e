#include "allocator/engine/out_of_memory_report.hpp"

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
          fmt::format("uvmalloc: {} asked of the {} facade on device {} cannot be had: {}",
                      format_size(request.requested_bytes), to_string(request.facade),
                      request.device, refusal.status.text()));
  }
}

// Advice for a span that the driver, or for ordinary memory the kernel, has refused.
std::string OutOfMemoryReport::advice_on_driver(const RuntimeStatus& status) const {
  if (status.error != RuntimeError::kOutOfMemory) return "";
  const Statistics now = introspection_.statistics();
  const std::size_t unused_bytes =
      now.budget_bytes - std::min<std::size_t>(now.touched_bytes.current, now.budget_bytes);
  return fmt::format(
      "With {} of the budget unused, address space has run out (this allocator's spans take {}, "
      "see ulimit -v), or memory of the driver's own. Smaller spans ({}) or fewer allocators take "
      "less address space. ",
      format_size(unused_bytes), format_size(now.span_bytes.current),
      machine_.configuration.name_of("UVMALLOC_SPAN_SIZE", "span_bytes"));
}

std::string OutOfMemoryReport::advice(const Request& request, const Refusal& refusal) const {
  const Configuration& settings = machine_.configuration;
  if (request.requested_bytes > kLargestRequest) {
    return fmt::format("A block has at most {}. Is the size right?", format_size(kLargestRequest));
  }
  std::string who;
  std::string more;
  bool exceeds_limits = false;
  std::size_t device_limit_bytes = 0;
  {
    const HeapGuard heap(state_);
    exceeds_limits = limits::exceeds(heap, request);
    device_limit_bytes = heap->device_limits[static_cast<std::size_t>(request.device)];
  }
  switch (refusal.by) {
    case RefusedBy::kBudget:
      more = fmt::format("To allow more, raise {}. ",
                         settings.name_of("UVMALLOC_BUDGET", "budget_bytes"));
      break;
    case RefusedBy::kDeviceLimit:
      who = fmt::format("Device {} may hold {} here. ", request.device,
                        format_size(device_limit_bytes));
      more = fmt::format("To allow more, raise {}, or the limit that the program has set. ",
                         settings.name_of("UVMALLOC_DEVICE_BUDGET", "device_budget_bytes"));
      break;
    case RefusedBy::kSpillLimit:
      more = spill_limit_.way_to_spill() + " ";
      break;
    case RefusedBy::kDriver:
    case RefusedBy::kNobody:
      who = "The driver gives no more. ";
      more = advice_on_driver(refusal.status);
      break;
  }
  return fmt::format("{}{}{}To need less, {}.", who,
                     exceeds_limits
                         ? "No free makes room for a request of that size. "
                         : "Everything cached was given back and the request tried again. ",
                     more,
                     settings.name_of("use smaller batches or free tensors first",
                                      "ask for less or free blocks first"));
}

void OutOfMemoryReport::raise(const Request& request, const Refusal& refusal) {
  TraceBlock traced = request.traced(nullptr, request.size_bytes);
  machine_.trace.out_of_memory(machine_.trace.now(), traced, refusal.status);
  const std::string table = holders_table(introspection_.statistics());
  {
    const HeapGuard heap(state_);
    ++heap->book.figures().out_of_memory;
    ++heap->book.service_of(request.facade, request.device).out_of_memory;
  }
  if (request.facade == Facade::kDevice) spill_limit_.note_error(request.device);
  throw OutOfMemoryError(
      request.requested_bytes,
      fmt::format(
          "uvmalloc: out of memory: {} asked of the {} facade on device {} cannot be had ({}).\n{}"
          "{}",
          format_size(request.requested_bytes), to_string(request.facade), request.device,
          refusal.status.ok() ? "no memory" : std::string(refusal.status.native_name), table,
          advice(request, refusal)),
      refusal.by == RefusedBy::kBudget || refusal.by == RefusedBy::kDeviceLimit ||
          refusal.by == RefusedBy::kSpillLimit);
}

}  // namespace uvm
