#include "allocator/spans/span_memory.hpp"

#include <algorithm>
#include <cerrno>

#include "allocator/policy/size_classes.hpp"
#include "allocator/spans/host_backing.hpp"

namespace uvm {
namespace {

// The number of allocators in the process, which share one address space. The nth allocator
// requests 1/n of the usual span size. So n allocators together take 1 + 1/2 + ... + 1/n usual
// spans: 3 for 11 allocators, 6 for 227.
std::atomic<std::size_t> registry = 0;

}  // namespace

SpanMemory::SpanMemory(const DeviceRuntime& runtime, const std::vector<DeviceDescription>& devices,
                       const Configuration& configuration, std::size_t budget_bytes)
    : runtime_(runtime),
      devices_(devices),
      span_bytes_(configuration.span_bytes),
      budget_bytes_(budget_bytes),
      sharers_(++registry),
      host_backing_(host_backing_of(devices, configuration.host_backing)) {}

SpanMemory::~SpanMemory() {
  --registry;
}

bool SpanMemory::gives_pages_back(const Span& span) const {
  const DeviceCapabilities& can = devices_[static_cast<std::size_t>(span.device)].capabilities;
  return span.ordinary || (span.facade == Facade::kDevice && can.discard && !can.integrated);
}

std::size_t SpanMemory::wanted_bytes(const Span& span, std::size_t least_bytes) const {
  if (span.reserved) return least_bytes;
  if (span_bytes_) {
    const std::size_t wanted = round_up(*span_bytes_, kPageBytes);
    return std::max(std::min(wanted, kLargestRequest), least_bytes);
  }
  const std::size_t most_bytes =
      std::min(policy::kMostSpanBytes, round_up(budget_bytes_, kPageBytes));
  std::size_t usual = policy::kLeastSpanBytes;
  if (gives_pages_back(span)) {
    usual = std::max(usual, round_up(most_bytes / sharers_, kPageBytes));
  } else if (span.facade == Facade::kDevice) {
    usual = std::max(usual, least_bytes * policy::kRequestsPerSpan);
  }
  return std::max(std::min(usual, most_bytes), least_bytes);
}

RuntimeStatus SpanMemory::try_to_take(Span* span) const {
  if (span->ordinary) {
    span->raw = map_ordinary(span->size_bytes);
    if (span->raw != nullptr) return {};
    return {RuntimeError::kOutOfMemory, ENOMEM, "ENOMEM", "mmap"};
  }
  RuntimeStatus status = runtime_.allocate_managed(span->device, span->size_bytes, &span->raw);
  if (!status.ok() || address_of(span->raw) % kPageBytes == 0) return status;
  // Drivers align large managed allocations to 2 MiB. If a driver does not, request one more page
  // to align the base.
  runtime_.free_managed(span->device, span->raw);
  return runtime_.allocate_managed(span->device, span->size_bytes + kPageBytes, &span->raw);
}

RuntimeStatus SpanMemory::take(std::size_t least_bytes, Span* span) {
  const std::size_t wanted = wanted_bytes(*span, least_bytes);
  span->size_bytes = std::max(std::min(wanted, most_bytes_.load()), least_bytes);
  RuntimeStatus status = try_to_take(span);
  // The address space may have no free range of that size.
  while (status.error == RuntimeError::kOutOfMemory && span->size_bytes > least_bytes) {
    span->size_bytes = std::max(round_up(span->size_bytes / 2, kPageBytes), least_bytes);
    status = try_to_take(span);
  }
  if (!status.ok()) return status;
  if (!span->reserved) most_bytes_ = span->size_bytes < wanted ? 2 * span->size_bytes : SIZE_MAX;
  span->base = reinterpret_cast<char*>(round_up(address_of(span->raw), kPageBytes));
  if (span->facade == Facade::kDevice && !span->ordinary &&
      devices_[static_cast<std::size_t>(span->device)].capabilities.coarse_grain) {
    runtime_.allow_coarse_grain(span->device, span->base, span->size_bytes);
  }
  return status;
}

RuntimeStatus SpanMemory::give_back(const Span& span) const noexcept {
  if (!span.ordinary) return runtime_.free_managed(span.device, span.raw);
  unmap_ordinary(span.raw, span.size_bytes);
  return {};
}

}  // namespace uvm
