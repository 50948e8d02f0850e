// Handlers, for every interface, of the calls that this process's allocator serves. They forward
// calls that are not served. `call` is an Intercepted (define_calls.hpp). Thread-safe; none throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <uvmalloc/device_runtime.hpp>
#include "preload/call_coverage.hpp"
#include "preload/define_calls.hpp"
#include "preload/device_answers.hpp"
#include "preload/registered_memory.hpp"
#include "preload/served_memory.hpp"
#include "storage/pages.hpp"

namespace uvm::preload {

using Kind = ServedMemory::Kind;

// Rows of pitched memory begin at multiples of kPitchBytes, as textures require.
inline constexpr std::size_t kPitchBytes = 512;
static_assert(kPitchBytes % kGranule == 0);

// More memory than any device has. A request above a limit of this process is forwarded with this
// size, so that the interface refuses the request and sets its last error.
inline constexpr std::size_t kMoreThanThereIs = std::size_t{1} << 62;

template <class Address>
void* pointer_of(Address address) {
  return reinterpret_cast<void*>(address);
}

// Addresses and handles are numbers in some interfaces, and pointers in others.
template <class Address>
std::uintptr_t number_of(Address address) {
  if constexpr (std::is_pointer_v<Address>) {
    return reinterpret_cast<std::uintptr_t>(address);
  } else {
    return address;
  }
}

// Counts a call that is forwarded on purpose, always or for these arguments. Returns false.
bool leave(const auto& call) noexcept {
  if (wants_to_serve()) count(call.number(), Outcome::kForwarded);
  return false;
}

// Allocates a block and puts it into `*out`, as a pointer or as a number (CUdeviceptr).
// `is_ordered`: the allocation is stream-ordered. Returns false if the caller has to forward the
// call; then `size_bytes`, which may have changed, is the size to forward.
template <class Address>
bool serve_at(const auto& call, Kind kind, int device, Address* out, std::size_t& size_bytes,
              StreamHandle stream = nullptr, bool is_ordered = false) noexcept {
  ServedMemory* memory = out != nullptr && device >= 0 ? ServedMemory::instance() : nullptr;
  void* address = nullptr;
  // Stream-ordered memory belongs to a pool of the device, not to a context.
  const void* context = memory != nullptr && !is_ordered ? call.context_of_thread() : nullptr;
  const Outcome outcome = memory == nullptr ? Outcome::kForwarded
                                            : memory->allocate({.vendor = call.kVendor,
                                                                .kind = kind,
                                                                .device = device,
                                                                .size_bytes = size_bytes,
                                                                .stream = stream,
                                                                .is_ordered = is_ordered,
                                                                .context = context,
                                                                .caller = call.caller},
                                                               &address);
  count(call.number(), outcome);
  if (outcome == Outcome::kBeyondLimit) size_bytes = kMoreThanThereIs;
  if (outcome != Outcome::kServed) return false;
  *out = reinterpret_cast<Address>(address);
  return true;
}

// Like serve_at(), on the current device.
bool serve(const auto& call, Kind kind, auto* out, std::size_t& size_bytes) noexcept {
  if (!wants_to_serve()) return false;
  return serve_at(call, kind, out != nullptr ? call.device() : -1, out, size_bytes);
}

// Like serve(), for pitched memory of `rows` rows. Does not serve 0 bytes or sizes that overflow.
bool serve_rows(const auto& call, auto* out, std::size_t* pitch_bytes, std::size_t& width_bytes,
                std::size_t rows) noexcept {
  const std::size_t pitch = round_up(width_bytes, kPitchBytes);
  std::size_t size_bytes = 0;
  if (pitch_bytes == nullptr || pitch < width_bytes ||
      __builtin_mul_overflow(pitch, rows, &size_bytes)) {
    return leave(call);
  }
  if (!serve(call, Kind::kDevice, out, size_bytes)) {
    if (size_bytes == kMoreThanThereIs) width_bytes = kMoreThanThereIs / rows;
    return false;
  }
  *pitch_bytes = pitch;
  return true;
}

// Returns whether `pool` is the default pool, the only pool without limits set by the program.
template <class Pool>
bool is_default_pool(const auto& call, int device, Pool pool) noexcept {
  Pool found = nullptr;
  return call.default_pool(&found, device) == call.success() && found == pool;
}
// Returns whether the device allocates from its default pool, not from a pool that the program
// chose.
template <class Call>
bool uses_default_pool(const Call& call, int device) noexcept {
  typename Call::Pool chosen = nullptr;
  const bool is_known = call.current_pool(&chosen, device) == call.success();
  return !is_known || is_default_pool(call, device, chosen);
}

// Returns an address without memory, which every call of the interface refuses.
template <class Address>
Address nobodys_address() {
  return reinterpret_cast<Address>(pointer_of(std::uintptr_t{1}));
}

// Returns the address to pass to a query of the interface. If the program has reserved `address`
// without mapping memory, returns an address without memory, because the interface knows the
// reserved range as managed memory.
template <class Address>
Address asked_address(Address address) noexcept {
  ServedMemory* memory = ServedMemory::existing_here();
  const bool is_free =
      memory != nullptr && memory->virtual_memory().is_unmapped(number_of(address));
  return is_free ? nobodys_address<Address>() : address;
}

// Forwards a free unless uvmalloc has done it. For an address in uvmalloc's memory that this call
// may not free, the real free could free a whole span. So the call is forwarded with an address
// without memory: the interface refuses that address, and sets its last error.
template <class Address, class... Arguments>
auto answer_free(const auto& call, ServedMemory::Freed freed, Address address,
                 Arguments... arguments) noexcept {
  if (freed == ServedMemory::Freed::kYes) return call.success();
  if (freed == ServedMemory::Freed::kNoBlock) address = nobodys_address<Address>();
  return call.forward(address, arguments...);
}

auto release(const auto& call, auto address, ServedMemory::Frees frees) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const auto freed =
      memory != nullptr ? memory->free(pointer_of(address), frees) : ServedMemory::Freed::kNotOurs;
  return answer_free(call, freed, address);
}

// Returns the served block that contains `address`.
inline std::optional<ServedMemory::Range> find(const void* address) noexcept {
  const ServedMemory* memory = ServedMemory::existing();
  ServedMemory::Range range;
  if (memory == nullptr || !memory->find(address, &range)) return std::nullopt;
  return range;
}
inline bool is_pinned(const void* address) noexcept {
  const auto range = find(address);
  return range && range->kind == ServedMemory::Kind::kPinned;
}

// Returns whether pointer queries report the block as device memory, although it is managed.
inline bool hides_management(const ServedMemory::Range& block) noexcept {
  return block.kind == ServedMemory::Kind::kDevice && calls_memory_devices();
}

// ---- handlers of allocations

auto allocate_device(const auto& call, auto* out, std::size_t size_bytes) {
  if (serve(call, Kind::kDevice, out, size_bytes)) return call.success();
  return call.forward(out, size_bytes);
}

auto allocate_managed(const auto& call, auto* out, std::size_t size_bytes, unsigned flags) {
  const bool is_served =
      flags == call.kAttachGlobal ? serve(call, Kind::kManaged, out, size_bytes) : leave(call);
  return is_served ? call.success() : call.forward(out, size_bytes, flags);
}

auto allocate_pinned(const auto& call, auto* out, std::size_t size_bytes) {
  if (serve(call, Kind::kPinned, out, size_bytes)) return call.success();
  return call.forward(out, size_bytes);
}

// Forwards other flags: they request a coherence or placement that served memory does not have.
auto allocate_pinned(const auto& call, auto* out, std::size_t size_bytes, unsigned flags) {
  const bool is_served = (flags & ~(call.kPinnedFlags | call.kWriteCombined)) == 0
                             ? serve(call, Kind::kPinned, out, size_bytes)
                             : leave(call);
  return is_served ? call.success() : call.forward(out, size_bytes, flags);
}

auto allocate_rows(const auto& call, auto* out, std::size_t* pitch_bytes, std::size_t width_bytes,
                   std::size_t height) {
  if (serve_rows(call, out, pitch_bytes, width_bytes, height)) return call.success();
  return call.forward(out, pitch_bytes, width_bytes, height);
}

auto allocate_rows(const auto& call, auto* out, std::size_t* pitch_bytes, std::size_t width_bytes,
                   std::size_t height, unsigned element_bytes) {
  if (call.accepts_elements(element_bytes) &&
      serve_rows(call, out, pitch_bytes, width_bytes, height)) {
    return call.success();
  }
  return call.forward(out, pitch_bytes, width_bytes, height, element_bytes);
}

auto allocate_3d(const auto& call, auto* out, auto extent) {
  std::size_t rows = 0;
  std::size_t pitch_bytes = 0;
  void* address = nullptr;
  if (out != nullptr && !__builtin_mul_overflow(extent.height, extent.depth, &rows) &&
      serve_rows(call, &address, &pitch_bytes, extent.width, rows)) {
    *out = {address, pitch_bytes, extent.width, extent.height};
    return call.success();
  }
  return call.forward(out, extent);
}

auto allocate_in_order(const auto& call, auto* out, std::size_t size_bytes, auto stream) {
  if (wants_to_serve()) {
    const int device = call.device_of(stream);
    const bool is_served =
        device < 0 || uses_default_pool(call, device)
            ? serve_at(call, Kind::kDevice, device, out, size_bytes, call.order(stream), true)
            : leave(call);
    if (is_served) return call.success();
  }
  return call.forward(out, size_bytes, stream);
}

auto allocate_from_pool(const auto& call, auto* out, std::size_t size_bytes, auto pool,
                        auto stream) {
  if (wants_to_serve()) {
    const int device = call.device_of(stream);
    const bool is_served =
        device >= 0 && is_default_pool(call, device, pool)
            ? serve_at(call, Kind::kDevice, device, out, size_bytes, call.order(stream), true)
            : leave(call);
    if (is_served) return call.success();
  }
  return call.forward(out, size_bytes, pool, stream);
}

auto forward_counted(const auto& call, auto... arguments) {
  leave(call);
  return call.forward(arguments...);
}

// ---- handlers of frees

auto free_device(const auto& call, auto address) {
  return release(call, address, call.kFreesOfDevice);
}

auto free_host(const auto& call, auto address) {
  return release(call, address, call.kFreesOfHost);
}

auto free_in_order(const auto& call, auto address, auto stream) {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr ? call.device_of(stream) : -1;
  const auto freed = device >= 0
                         ? memory->free_async(pointer_of(address), device, call.order(stream))
                         : ServedMemory::Freed::kNotOurs;
  return answer_free(call, freed, address, stream);
}

// `context` determines the device. Without `context`, the call waits for the current device.
auto synchronize(const auto& call, auto... context) {
  ServedMemory* memory = ServedMemory::existing();
  const bool may_serve = memory != nullptr && call.real() != nullptr;
  const int device = may_serve ? call.device_of_context(context...) : -1;
  if (device < 0) return call.forward(context...);
  auto result = call.success();
  memory->free_after(device, [&] {
    result = call.forward(context...);
    return result == call.success();
  });
  return result;
}

// ---- handlers of queries about memory

// Does nothing for a served block, because attaching is for devices that cannot share memory with
// the host, and because the driver attaches only whole spans.
auto attach(const auto& call, auto stream, auto address, std::size_t size_bytes, unsigned flags) {
  if (find(pointer_of(address))) return call.success();
  return call.forward(stream, address, size_bytes, flags);
}

template <class Call>
auto get_free_memory(const Call& call, std::size_t* free_bytes, std::size_t* total_bytes) {
  const auto result = call.forward(free_bytes, total_bytes);
  if (result == call.success())
    beside(call.name(), [&] { tell_free_memory(free_bytes, total_bytes, Call::device); });
  return result;
}

// Answers queries about served blocks itself, because the interface knows only spans.
template <class Address>
auto get_range(const auto& call, Address* base, std::size_t* size_bytes, Address address) {
  if (const auto range = find(pointer_of(address))) {
    if (base != nullptr) *base = reinterpret_cast<Address>(range->base);
    if (size_bytes != nullptr) *size_bytes = range->size_bytes;
    return call.success();
  }
  return call.forward(base, size_bytes, asked_address(address));
}

auto get_device_pointer(const auto& call, void** out, void* address, unsigned flags) {
  bool is_ours = false;
  beside(call.name(), [&] {
    is_ours =
        out != nullptr && (is_pinned(address) || RegisteredMemory::instance().contains(address));
  });
  if (!is_ours) return call.forward(out, address, flags);
  *out = address;
  return call.success();
}

auto get_host_flags(const auto& call, unsigned* flags, void* address) {
  if (flags == nullptr || !is_pinned(address)) return call.forward(flags, address);
  *flags = call.kPinnedFlags;
  return call.success();
}

auto register_host(const auto& call, void* address, std::size_t size_bytes, unsigned flags) {
  std::optional<int> result;
  beside(call.name(), [&] { result = RegisteredMemory::instance().add(address, size_bytes); });
  if (result) return static_cast<decltype(call.success())>(*result);
  return call.forward(address, size_bytes, flags);
}

auto unregister_host(const auto& call, void* address) {
  bool was_ours = false;
  beside(call.name(), [&] { was_ours = RegisteredMemory::instance().remove(address); });
  return was_ours ? call.success() : call.forward(address);
}

}  // namespace uvm::preload
