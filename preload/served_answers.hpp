// How an interposed allocation call is answered, whichever interface it belongs to: from this
// process's ServedMemory where that serves it, else by the function behind it. No function here
// throws. Thread-safe.
#pragma once

#include <cstddef>
#include <optional>

#include <uvmalloc/preload/call_coverage.hpp>
#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_memory.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/storage/pages.hpp>

// The Asked of the function that this stands in. vendor.hpp of the interface has kVendor.
#define UVMALLOC_ASKED(function, kind, current_device)                          \
  uvm::preload::Asked {                                                         \
    UVMALLOC_CALL(function), kVendor, uvm::preload::Kind::kind, current_device, \
        __builtin_return_address(0)                                             \
  }
#define UVMALLOC_CALL(function) uvm::preload::kCall_##function

namespace uvm::preload {

// Rows of pitched memory begin at multiples of it, as textures want them.
inline constexpr std::size_t kPitchBytes = 512;
static_assert(kPitchBytes % kGranule == 0);

// Stream 0 of a program that was compiled for a default stream per thread.
inline StreamHandle per_thread(StreamHandle stream) {
  return stream != nullptr ? stream : kPerThreadStream;
}

// The current device of the thread, as each interface has it; -1: none, and the runtime is to say
// why.
using CurrentDevice = int (*)() noexcept;

using Kind = ServedMemory::Kind;

// An allocation call: which, its memory, and the code that made it.
struct Asked {
  Call call;
  ServedMemory::Vendor vendor;
  Kind kind;
  CurrentDevice current_device;
  const void* caller;
};

// `out` gets the block, as a pointer or as the driver's number for one. False: the call is the
// runtime's.
template <class Address>
bool serve(const Asked& asked, Address* out, std::size_t size_bytes,
           StreamHandle stream = nullptr) noexcept {
  if (!wants_to_serve()) return false;
  const int device = out != nullptr ? asked.current_device() : -1;
  ServedMemory* memory = device >= 0 ? ServedMemory::instance() : nullptr;
  void* address = nullptr;
  const Outcome outcome =
      memory == nullptr
          ? Outcome::kLeft
          : memory->allocate({asked.vendor, asked.kind, device, size_bytes, stream, asked.caller},
                             &address);
  count(asked.call, outcome);
  if (outcome != Outcome::kServed) return false;
  *out = reinterpret_cast<Address>(address);
  return true;
}

// This use of the call is left to the runtime.
inline bool leave(Call call) noexcept {
  if (wants_to_serve()) count(call, Outcome::kLeft);
  return false;
}

// The current device of the thread by the interface's own question; -1: none.
template <class Result>
int device_by(Result (*get_device)(int*)) noexcept {
  int device = -1;
  return get_device != nullptr && get_device(&device) == Result{} ? device : -1;
}

// From a device's default pool, for which `get_default` asks the interface. The limits of other
// pools are the program's.
template <class Address, class Pool, class Result>
bool serve_from_pool(const Asked& asked, Address* out, std::size_t size_bytes, Pool pool,
                     StreamHandle stream, Result (*get_default)(Pool*, int)) noexcept {
  if (!wants_to_serve()) return false;
  const int device = asked.current_device();
  Pool default_pool = nullptr;
  const bool is_default = device >= 0 && get_default != nullptr &&
                          get_default(&default_pool, device) == Result{} && pool == default_pool;
  return is_default ? serve(asked, out, size_bytes, stream) : leave(asked.call);
}

// Pitched memory of `rows` rows. 0 bytes, and more than there can be, are the runtime's.
template <class Address>
bool serve_rows(const Asked& asked, Address* out, std::size_t* pitch_bytes, std::size_t width_bytes,
                std::size_t rows) noexcept {
  const std::size_t pitch = round_up(width_bytes, kPitchBytes);
  std::size_t size_bytes = 0;
  if (pitch_bytes == nullptr || pitch < width_bytes ||
      __builtin_mul_overflow(pitch, rows, &size_bytes)) {
    return leave(asked.call);
  }
  if (!serve(asked, out, size_bytes)) return false;
  *pitch_bytes = pitch;
  return true;
}

// What a free answers; nullopt: the address is the runtime's. An invalid value is 1 in every
// interface.
template <class Result>
std::optional<Result> answer_of(ServedMemory::Freed freed) noexcept {
  if (freed == ServedMemory::Freed::kNotOurs) return std::nullopt;
  return static_cast<Result>(freed == ServedMemory::Freed::kYes ? 0 : 1);
}
template <class Result>
std::optional<Result> take_back(void* address) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  if (memory == nullptr) return std::nullopt;
  return answer_of<Result>(memory->free(address));
}
template <class Result>
std::optional<Result> take_back(void* address, CurrentDevice current_device,
                                StreamHandle stream) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr ? current_device() : -1;
  if (device < 0) return std::nullopt;
  return answer_of<Result>(memory->free_async(address, device, stream));
}

// The block of ours that `address` points into.
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

// Whether the memory is to be called device memory, although it is managed.
inline bool hides_management(const void* address) noexcept {
  if (!calls_memory_devices()) return false;
  const auto range = find(address);
  return range && range->kind == ServedMemory::Kind::kDevice;
}

template <class Result>
Result synchronize(CurrentDevice current_device, Result (*next)()) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr && next != nullptr ? current_device() : -1;
  if (device < 0) return pass_on(next);
  Result result{};
  memory->free_after(device, [&] {
    result = next();
    return result == Result{};
  });
  return result;
}

}  // namespace uvm::preload
