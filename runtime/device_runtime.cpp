#include <uvmalloc/device_runtime.hpp>

#include <atomic>

#include <fmt/format.h>

namespace uvm {

std::uint64_t this_thread_number() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

std::string to_string(Place place) {
  switch (place.kind) {
    case PlaceKind::kHost:
      return "host";
    case PlaceKind::kDevice:
      return fmt::format("device:{}", place.index);
    case PlaceKind::kNowhere:
      break;
  }
  return "nowhere";
}

std::string RuntimeStatus::text() const {
  if (ok()) return "ok";
  return fmt::format("{}: {} ({})", call, native_name, native_code);
}

std::string why_not_usable(int device, const DeviceDescription& description) {
  if (description.capabilities.migrates_on_fault) return "";
  return fmt::format("device {} ({}) is not used: {}", device, description.name,
                     description.why_pages_stay.empty()
                         ? "pages of managed memory do not migrate to their user"
                         : description.why_pages_stay);
}

std::string_view to_string(Advice advice) {
  switch (advice) {
    case Advice::kSetReadMostly:
      return "set_read_mostly";
    case Advice::kUnsetReadMostly:
      return "unset_read_mostly";
    case Advice::kSetPreferredLocation:
      return "set_preferred_location";
    case Advice::kUnsetPreferredLocation:
      return "unset_preferred_location";
    case Advice::kSetAccessedBy:
      return "set_accessed_by";
    case Advice::kUnsetAccessedBy:
      return "unset_accessed_by";
  }
  return "unknown";
}

}  // namespace uvm
