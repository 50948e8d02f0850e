// Handlers, for every interface, of the calls of virtual memory management (virtual_memory.hpp).
// They forward calls about handles and addresses of the driver. `call` is an Intercepted
// (define_calls.hpp). Thread-safe; none throws.
#pragma once

#include <cstddef>
#include <cstdint>

#include "preload/served_calls.hpp"
#include "preload/virtual_memory.hpp"
#include "storage/pages.hpp"

namespace uvm::preload {

// Converts the result to that of the interface.
auto result_of(const auto& call, VirtualMemory::Result result) noexcept {
  return static_cast<decltype(call.success())>(static_cast<int>(result));
}

// Returns the virtual memory that serves new reservations and handles of the caller. Returns
// nullptr, and counts the call as forwarded, if they are not served.
VirtualMemory* new_virtual_memory(const auto& call) noexcept {
  if (!wants_to_serve() || !call.can_serve_virtual_memory()) return nullptr;
  ServedMemory* memory = serves_virtual_memory() ? ServedMemory::instance() : nullptr;
  const bool is_served = memory != nullptr && memory->serves(call.kVendor);
  const bool is_excluded = is_served && memory->excludes_caller(call.caller);
  if (is_served && !is_excluded) return &memory->virtual_memory();
  count(call.number(), is_excluded ? Outcome::kExcluded : Outcome::kForwarded);
  return nullptr;
}

// Counts a call that was served, or refused for lack of memory. Returns the interface's result.
auto counted(const auto& call, VirtualMemory::Result result) noexcept {
  if (result == VirtualMemory::Result::kOk) {
    count(call.number(), Outcome::kServed);
    ServedMemory::existing()->say_that_it_serves();
  } else if (result == VirtualMemory::Result::kOutOfMemory) {
    count(call.number(), Outcome::kBeyondLimit);
  }
  return result_of(call, result);
}

// Returns the virtual memory if it has reserved the address or made the handle, else nullptr.
template <class Address>
VirtualMemory* virtual_memory_at(Address address) noexcept {
  ServedMemory* memory = ServedMemory::existing_here();
  if (memory == nullptr) return nullptr;
  VirtualMemory& found = memory->virtual_memory();
  return found.has_reserved(number_of(address)) ? &found : nullptr;
}
template <class Handle>
VirtualMemory* virtual_memory_of(Handle handle) noexcept {
  ServedMemory* memory = ServedMemory::existing_here();
  const bool is_ours = memory != nullptr && VirtualMemory::is_handle(number_of(handle));
  return is_ours ? &memory->virtual_memory() : nullptr;
}

// ---- handlers

// The requested address is only a hint, which is ignored.
template <class Address>
auto reserve_addresses(const auto& call, Address* out, std::size_t size_bytes,
                       std::size_t alignment_bytes, Address hint, unsigned long long flags) {
  VirtualMemory* memory = out != nullptr && flags == 0 ? new_virtual_memory(call) : nullptr;
  if (memory == nullptr) return call.forward(out, size_bytes, alignment_bytes, hint, flags);
  std::uintptr_t address = 0;
  const int current = call.device();
  const auto result =
      memory->reserve(current < 0 ? 0 : current, size_bytes, alignment_bytes, &address);
  if (result == VirtualMemory::Result::kOk) *out = reinterpret_cast<Address>(pointer_of(address));
  return counted(call, result);
}

auto free_addresses(const auto& call, auto address, std::size_t size_bytes) {
  if (VirtualMemory* memory = virtual_memory_at(address))
    return result_of(call, memory->free_addresses(number_of(address), size_bytes));
  return call.forward(address, size_bytes);
}

// Forwards memory of the host and tiles of arrays. Serves requests for exportable handles, because
// programs request them without exporting them. Also serves requests for compressible memory; this
// memory is not compressed, as on a device without room for compression.
template <class Handle>
auto create_piece(const auto& call, Handle* out, std::size_t size_bytes, const auto* properties,
                  unsigned long long flags) {
  const bool is_plain = out != nullptr && properties != nullptr && flags == 0 &&
                        properties->type == call.kPinnedMemory &&
                        properties->location.type == call.kDeviceLocation &&
                        properties->allocFlags.usage == 0;
  VirtualMemory* memory = nullptr;
  if (is_plain) {
    memory = new_virtual_memory(call);
  } else {
    leave(call);
  }
  if (memory == nullptr) return call.forward(out, size_bytes, properties, flags);
  VirtualMemory::Handle handle = 0;
  const auto result = memory->create(properties->location.id, size_bytes, &handle);
  if (result == VirtualMemory::Result::kOk) *out = reinterpret_cast<Handle>(pointer_of(handle));
  return counted(call, result);
}

auto release_piece(const auto& call, auto handle) {
  if (VirtualMemory* memory = virtual_memory_of(handle))
    return result_of(call, memory->release(number_of(handle)));
  return call.forward(handle);
}

template <class Handle>
auto retain_piece(const auto& call, Handle* out, void* address) {
  VirtualMemory* memory = out != nullptr ? virtual_memory_at(address) : nullptr;
  if (memory == nullptr) return call.forward(out, address);
  VirtualMemory::Handle handle = 0;
  const auto result = memory->retain(number_of(address), &handle);
  if (result == VirtualMemory::Result::kOk) *out = reinterpret_cast<Handle>(pointer_of(handle));
  return result_of(call, result);
}

auto get_piece_properties(const auto& call, auto* out, auto handle) {
  VirtualMemory* memory = virtual_memory_of(handle);
  if (memory == nullptr) return call.forward(out, handle);
  const auto device = memory->device_of(number_of(handle));
  if (out == nullptr || !device) return result_of(call, VirtualMemory::Result::kInvalidValue);
  *out = {};
  out->type = call.kPinnedMemory;
  out->location.type = call.kDeviceLocation;
  out->location.id = *device;
  return call.success();
}

// A driver that cannot export handles refuses in the same way.
auto export_piece(const auto& call, void* out, auto handle, auto type, unsigned long long flags) {
  if (virtual_memory_of(handle) != nullptr)
    return result_of(call, VirtualMemory::Result::kNotSupported);
  return call.forward(out, handle, type, flags);
}
auto export_range(const auto& call, void* out, auto address, std::size_t size_bytes, auto type,
                  unsigned long long flags) {
  if (virtual_memory_at(address) != nullptr)
    return result_of(call, VirtualMemory::Result::kNotSupported);
  return call.forward(out, address, size_bytes, type, flags);
}
auto bind_multicast(const auto& call, auto multicast, std::size_t offset, auto handle,
                    auto... rest) {
  if (virtual_memory_of(handle) != nullptr)
    return result_of(call, VirtualMemory::Result::kNotSupported);
  return call.forward(multicast, offset, handle, rest...);
}
auto bind_multicast_of(const auto& call, auto multicast, auto device, std::size_t offset,
                       auto handle, std::size_t handle_offset, std::size_t size_bytes,
                       unsigned long long flags) {
  if (virtual_memory_of(handle) != nullptr)
    return result_of(call, VirtualMemory::Result::kNotSupported);
  return call.forward(multicast, device, offset, handle, handle_offset, size_bytes, flags);
}

// The driver cannot map its memory at addresses of uvmalloc, and refuses to.
auto map_piece(const auto& call, auto address, std::size_t size_bytes, std::size_t offset,
               auto handle, unsigned long long flags) {
  VirtualMemory* memory = virtual_memory_of(handle);
  if (memory == nullptr) {
    if (virtual_memory_at(address) != nullptr) leave(call);
    return call.forward(address, size_bytes, offset, handle, flags);
  }
  if (offset != 0 || flags != 0) return result_of(call, VirtualMemory::Result::kInvalidValue);
  return counted(call, memory->map(number_of(address), size_bytes, number_of(handle)));
}

auto unmap_pieces(const auto& call, auto address, std::size_t size_bytes) {
  if (VirtualMemory* memory = virtual_memory_at(address))
    return result_of(call, memory->unmap(number_of(address), size_bytes));
  return call.forward(address, size_bytes);
}

auto set_access(const auto& call, auto address, std::size_t size_bytes, const auto* descriptions,
                std::size_t descriptions_count) {
  using Result = VirtualMemory::Result;
  VirtualMemory* memory = virtual_memory_at(address);
  if (memory == nullptr) return call.forward(address, size_bytes, descriptions, descriptions_count);
  Result result =
      descriptions == nullptr || descriptions_count == 0 ? Result::kInvalidValue : Result::kOk;
  for (std::size_t i = 0; i < descriptions_count && result == Result::kOk; ++i) {
    const auto& [location, flags] = descriptions[i];
    const bool is_known = location.type == call.kDeviceLocation &&
                          (flags == call.kMayUse || flags == call.kMayNotUse);
    result = is_known ? memory->set_access(number_of(address), size_bytes, location.id,
                                           flags == call.kMayUse)
                      : Result::kNotSupported;
  }
  return result_of(call, result);
}

auto get_access(const auto& call, unsigned long long* out, const auto* location, auto address) {
  using Result = VirtualMemory::Result;
  VirtualMemory* memory = virtual_memory_at(address);
  if (memory == nullptr) return call.forward(out, location, address);
  if (out == nullptr || location == nullptr) return result_of(call, Result::kInvalidValue);
  if (location->type != call.kDeviceLocation) return result_of(call, Result::kNotSupported);
  bool may_use = false;
  const Result result = memory->get_access(number_of(address), location->id, &may_use);
  if (result == Result::kOk) *out = may_use ? call.kMayUse : call.kMayNotUse;
  return result_of(call, result);
}

auto get_granularity(const auto& call, std::size_t* out, const auto* properties, auto kind) {
  const auto result = call.forward(out, properties, kind);
  if (!wants_to_serve() || !serves_virtual_memory() || out == nullptr) return result;
  // uvmalloc serves these calls even if the driver does not support them.
  const bool is_unsupported = result == result_of(call, VirtualMemory::Result::kNotSupported) &&
                              properties != nullptr &&
                              properties->location.type == call.kDeviceLocation;
  if (is_unsupported) *out = kPageBytes;
  if (result == call.success()) *out = round_up(*out, kPageBytes);
  return is_unsupported ? call.success() : result;
}

}  // namespace uvm::preload
