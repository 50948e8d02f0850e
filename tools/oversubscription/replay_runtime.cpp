#include "tools/oversubscription/replay_runtime.hpp"

#include <algorithm>

#include "sim/engine/location.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::kBlockBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::PageRange;

// Smaller handles denote default streams.
constexpr std::uintptr_t kFirstHandle = 16;

std::uint32_t number_of(StreamHandle handle) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(handle) - kFirstHandle);
}

std::size_t index_of(EventHandle event) {
  return reinterpret_cast<std::uintptr_t>(event) - 1;
}

int location_of(Place place) {
  return place.is_host() ? uvmsim::kHost : place.index;
}

RuntimeStatus refusal(RuntimeError error, std::string_view call) {
  return {error, 0, error == RuntimeError::kNotSupported ? "NOT_IN_A_REPLAY" : "NOT_RECORDED",
          call};
}

// Both enumerations have CUDA's values.
static_assert(static_cast<int>(uvmsim::Advice::kSetReadMostly) ==
              static_cast<int>(Advice::kSetReadMostly));
static_assert(static_cast<int>(uvmsim::Advice::kUnsetAccessedBy) ==
              static_cast<int>(Advice::kUnsetAccessedBy));

}  // namespace

StreamHandle ReplayRuntime::handle_of(std::uint32_t stream) {
  return reinterpret_cast<StreamHandle>(kFirstHandle + stream);
}

std::optional<PageRange> ReplayRuntime::pages_at(const void* address,
                                                 std::size_t size_bytes) const {
  const auto& blocks = recording_.block_addresses;
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  const auto found = std::ranges::lower_bound(blocks, start / kBlockBytes * kBlockBytes);
  const std::size_t count = (start % kBlockBytes + size_bytes + kBlockBytes - 1) / kBlockBytes;
  if (found == blocks.end() || count == 0 ||
      static_cast<std::size_t>(blocks.end() - found) < count || *found > start ||
      found[static_cast<std::ptrdiff_t>(count) - 1] != *found + (count - 1) * kBlockBytes)
    return std::nullopt;
  const auto base = static_cast<std::size_t>(found - blocks.begin()) * kPagesPerBlock;
  const std::size_t first = base + (start - *found) / uvmsim::kPageBytes;
  return PageRange{first, first + size_bytes / uvmsim::kPageBytes};
}

RuntimeStatus ReplayRuntime::describe(int, DeviceDescription* out) const {
  out->name = name();
  return {};
}

RuntimeStatus ReplayRuntime::memory_figures(int device, MemoryFigures* out) const {
  *out = {hints_->free_bytes(device), hints_->usable_bytes(device)};
  return {};
}

RuntimeStatus ReplayRuntime::pointer_attributes(const void*, PointerAttributes* out) const {
  *out = {};
  return {};
}

RuntimeStatus ReplayRuntime::allocate_managed(int, std::size_t, void**) const {
  return refusal(RuntimeError::kNotSupported, "allocate_managed");
}

RuntimeStatus ReplayRuntime::free_managed(int, void*) const {
  return refusal(RuntimeError::kNotSupported, "free_managed");
}

RuntimeStatus ReplayRuntime::advise(int, void* address, std::size_t size_bytes, Advice advice,
                                    Place place) const {
  const auto pages = pages_at(address, size_bytes);
  if (!pages) return refusal(RuntimeError::kInvalidValue, "advise");
  hints_->advise(*pages, static_cast<uvmsim::Advice>(advice), location_of(place));
  return {};
}

RuntimeStatus ReplayRuntime::prefetch(int, void* address, std::size_t size_bytes, Place destination,
                                      StreamHandle stream) const {
  const auto pages = pages_at(address, size_bytes);
  if (!pages) return refusal(RuntimeError::kInvalidValue, "prefetch");
  hints_->prefetch(number_of(stream), *pages, location_of(destination));
  return {};
}

RuntimeStatus ReplayRuntime::discard(int, void* address, std::size_t size_bytes,
                                     StreamHandle stream) const {
  const auto pages = pages_at(address, size_bytes);
  if (!pages) return refusal(RuntimeError::kInvalidValue, "discard");
  hints_->discard(number_of(stream), *pages);
  return {};
}

RuntimeStatus ReplayRuntime::copy(int, void*, const void*, std::size_t, StreamHandle) const {
  return refusal(RuntimeError::kNotSupported, "copy");
}

RuntimeStatus ReplayRuntime::create_stream(int device, StreamHandle* out) const {
  *out = handle_of(hints_->side_stream(device, made_streams_++));
  return {};
}

RuntimeStatus ReplayRuntime::destroy_stream(int, StreamHandle) const {
  return {};
}

RuntimeStatus ReplayRuntime::synchronize_stream(int, StreamHandle stream) const {
  hints_->host_wait_for(hints_->record(number_of(stream)));
  return {};
}

RuntimeStatus ReplayRuntime::stream_wait_event(int, StreamHandle stream, EventHandle event) const {
  if (const auto recorded = events_.at(index_of(event)))
    hints_->wait_for(number_of(stream), *recorded);
  return {};
}

RuntimeStatus ReplayRuntime::is_capturing(int, StreamHandle, bool* out) const {
  *out = false;
  return {};
}

RuntimeStatus ReplayRuntime::create_event(int, EventHandle* out) const {
  events_.emplace_back();
  *out = reinterpret_cast<EventHandle>(events_.size());
  return {};
}

RuntimeStatus ReplayRuntime::destroy_event(int, EventHandle) const {
  return {};
}

RuntimeStatus ReplayRuntime::record_event(int, EventHandle event, StreamHandle stream) const {
  events_.at(index_of(event)) = hints_->record(number_of(stream));
  return {};
}

RuntimeStatus ReplayRuntime::query_event(int, EventHandle) const {
  return refusal(RuntimeError::kNotSupported, "query_event");
}

RuntimeStatus ReplayRuntime::synchronize_event(int, EventHandle event) const {
  if (const auto recorded = events_.at(index_of(event))) hints_->host_wait_for(*recorded);
  return {};
}

RuntimeStatus ReplayRuntime::synchronize_device(int) const {
  return refusal(RuntimeError::kNotSupported, "synchronize_device");
}

}  // namespace uvm::oversubscription
