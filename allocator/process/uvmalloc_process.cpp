// The functions of the C interface about this process and its allocator.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "allocator/process/c_interface.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"

namespace {

// Copies the string that `make` returns into the buffer, cut to the buffer's size and ended by NUL.
// Returns the bytes that the whole string needs, NUL included, or -1 if `make` failed.
template <class Make>
std::int64_t text_out(Make make, char* buffer, std::size_t capacity_bytes) {
  std::int64_t needed = -1;
  uvm::c_interface::guarded([&] {
    const std::string text = make();
    if (buffer != nullptr && capacity_bytes != 0) {
      const std::size_t count = std::min(text.size(), capacity_bytes - 1);
      std::memcpy(buffer, text.data(), count);
      buffer[count] = '\0';
    }
    needed = static_cast<std::int64_t>(text.size()) + 1;
    return UVMALLOC_OK;
  });
  return needed;
}

}  // namespace

const char* uvmalloc_version(void) noexcept {
  return uvm::version();
}

int uvmalloc_version_number(void) noexcept {
  return UVMALLOC_VERSION_NUMBER;
}

std::int64_t uvmalloc_report_json(char* buffer, std::size_t capacity_bytes) noexcept {
  return text_out(uvm::report_json, buffer, capacity_bytes);
}

std::int64_t uvmalloc_report_json_of(const char* figures_file, char* buffer,
                                     std::size_t capacity_bytes) noexcept {
  if (figures_file == nullptr) return -1;
  return text_out(
      [&] {
        std::string why_not;
        std::string text = uvm::report_json_of(figures_file, &why_not);
        if (text.empty()) throw std::runtime_error(why_not);
        return text;
      },
      buffer, capacity_bytes);
}

std::int64_t uvmalloc_doctor_json(char* buffer, std::size_t capacity_bytes) noexcept {
  return text_out(uvm::doctor_json, buffer, capacity_bytes);
}

void uvmalloc_trace_mark(const char* text) noexcept {
  uvm::CachingManagedAllocator* allocator = uvm::process_allocator();
  if (allocator != nullptr && text != nullptr && *text != '\0') allocator->tracing().mark(text);
}

void uvmalloc_trace_kernel(int device, const void* stream, std::uint64_t amount, int type,
                           const uvmalloc_trace_range* ranges, std::size_t range_count) noexcept {
  static_assert(sizeof(uvmalloc_trace_range) == sizeof(uvm::TracedRange) &&
                offsetof(uvmalloc_trace_range, access) == offsetof(uvm::TracedRange, access));
  uvm::CachingManagedAllocator* allocator = uvm::process_allocator();
  if (allocator == nullptr || (ranges == nullptr && range_count != 0)) return;
  allocator->tracing().kernel(device, const_cast<void*>(stream), amount, type,
                              {reinterpret_cast<const uvm::TracedRange*>(ranges), range_count});
}

void uvmalloc_trace_order(int device, const void* stream, const void* signal, int order) noexcept {
  uvm::CachingManagedAllocator* allocator = uvm::process_allocator();
  if (allocator != nullptr)
    allocator->tracing().order(device, const_cast<void*>(stream), signal, order);
}

int uvmalloc_set_host_managed(int managed) noexcept {
  const auto memory = managed == 0   ? uvm::HostMemory::kMalloc
                      : managed == 2 ? uvm::HostMemory::kAlwaysManaged
                                     : uvm::HostMemory::kManaged;
  return static_cast<int>(uvm::set_host_memory(memory));
}

int uvmalloc_is_enabled() noexcept {
  try {
    return uvm::is_plugin_enabled();
  } catch (...) {
    return 0;  // memory ran out while the configuration was read
  }
}

int uvmalloc_set_move_on_copy(int on) noexcept {
  const int before = uvmalloc_move_on_copy();
  const uvm::MoveMode configured = uvm::configured_move_mode();
  const auto off = configured == uvm::MoveMode::kAlias ? uvm::MoveMode::kCopyOnWrite : configured;
  uvm::set_move_mode(on != 0 ? uvm::MoveMode::kAlias : off);
  return before;
}

int uvmalloc_move_on_copy() noexcept {
  return uvm::move_mode() == uvm::MoveMode::kAlias;
}

int uvmalloc_set_thread_move_on_copy(int on) noexcept {
  return uvm::set_thread_aliases(on != 0);
}
