// How an interposed allocation call is answered, whichever interface it belongs to: from this
// process's ServedMemory where that serves it, else by the function behind it. No function here
// throws. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <uvmalloc/device_runtime.hpp>
#include "preload/call_coverage.hpp"
#include "preload/interpose.hpp"
#include "preload/served_memory.hpp"
#include "storage/pages.hpp"

// The Asked of the function that this stands in. vendor.hpp of the interface has kVendor.
#define UVMALLOC_ASKED(function, kind, current_device)                                             \
  uvm::preload::Asked {                                                                            \
    UVMALLOC_CALL(function), kVendor, uvm::preload::Kind::kind, current_device, context_of_thread, \
        __builtin_return_address(0)                                                                \
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
  const void* (*context_of_thread)() noexcept;
  const void* caller;
};

// A runtime has no memory for it. Asked for so much, it says so and sets its last error.
inline constexpr std::size_t kMoreThanThereIs = std::size_t{1} << 62;

// `out` gets the block, as a pointer or as the driver's number for one. False: the call is the
// runtime's. A request beyond a limit of this process is the runtime's as one for kMoreThanThereIs.
// With `is_ordered` in the order of the stream.
template <class Address>
bool serve_at(const Asked& asked, int device, Address* out, std::size_t& size_bytes,
              StreamHandle stream = nullptr, bool is_ordered = false) noexcept {
  ServedMemory* memory = out != nullptr && device >= 0 ? ServedMemory::instance() : nullptr;
  void* address = nullptr;
  // Memory in the order of a stream belongs to a pool of the device, not to a context.
  const void* context = memory != nullptr && !is_ordered ? asked.context_of_thread() : nullptr;
  const Outcome outcome = memory == nullptr ? Outcome::kLeft
                                            : memory->allocate({.vendor = asked.vendor,
                                                                .kind = asked.kind,
                                                                .device = device,
                                                                .size_bytes = size_bytes,
                                                                .stream = stream,
                                                                .is_ordered = is_ordered,
                                                                .context = context,
                                                                .caller = asked.caller},
                                                               &address);
  count(asked.call, outcome);
  if (outcome == Outcome::kBeyondLimit) size_bytes = kMoreThanThereIs;
  if (outcome != Outcome::kServed) return false;
  *out = reinterpret_cast<Address>(address);
  return true;
}

template <class Address>
bool serve(const Asked& asked, Address* out, std::size_t& size_bytes) noexcept {
  if (!wants_to_serve()) return false;
  return serve_at(asked, out != nullptr ? asked.current_device() : -1, out, size_bytes);
}

// This use of the call is left to the runtime.
inline bool leave(Call call) noexcept {
  if (wants_to_serve()) count(call, Outcome::kLeft);
  return false;
}

// The device of a stream that is not a stream 0, by the interface's own question; -1: the current
// device is to be asked for.
template <class Stream, class Result>
int device_by(Result (*get_device)(Stream, int*), Stream stream) noexcept {
  int device = -1;
  const bool is_asked = stream != nullptr && get_device != nullptr;
  return is_asked && get_device(stream, &device) == Result{} ? device : -1;
}

// The current device of the thread by the interface's own question; -1: none.
template <class Result>
int device_by(Result (*get_device)(int*)) noexcept {
  int device = -1;
  return get_device != nullptr && get_device(&device) == Result{} ? device : -1;
}

// What is asked of an interface about memory in the order of a stream.
template <class Stream, class Pool, class Result>
struct PoolQuestions {
  int (*device_of)(Stream) noexcept;  // as CurrentDevice
  Result (*default_pool)(Pool*, int);
  Result (*current_pool)(Pool*, int);

  bool is_default(int device, Pool pool) const noexcept {
    Pool found = nullptr;
    return default_pool != nullptr && default_pool(&found, device) == Result{} && found == pool;
  }
  // The pool that the program has chosen for the device's allocations.
  bool has_default(int device) const noexcept {
    Pool chosen = nullptr;
    return current_pool == nullptr || current_pool(&chosen, device) != Result{} ||
           is_default(device, chosen);
  }
};

template <class Stream, class Pool, class Result>
PoolQuestions(int (*)(Stream) noexcept, Result (*)(Pool*, int), Result (*)(Pool*, int))
    -> PoolQuestions<Stream, Pool, Result>;

// In the order of a stream, from its device's default pool. The limits of other pools are the
// program's. `order` is the stream as a runtime of ours names it.
template <class Address, class Stream, class Pool, class Result>
bool serve_in_order(const Asked& asked, Address* out, std::size_t& size_bytes, Stream stream,
                    StreamHandle order,
                    const PoolQuestions<Stream, Pool, Result>& questions) noexcept {
  if (!wants_to_serve()) return false;
  const int device = questions.device_of(stream);
  if (device >= 0 && !questions.has_default(device)) return leave(asked.call);
  return serve_at(asked, device, out, size_bytes, order, true);
}
// The same from a pool that the call names.
template <class Address, class Stream, class Pool, class Result>
bool serve_from_pool(const Asked& asked, Address* out, std::size_t& size_bytes, Pool pool,
                     Stream stream, StreamHandle order,
                     const PoolQuestions<Stream, Pool, Result>& questions) noexcept {
  if (!wants_to_serve()) return false;
  const int device = questions.device_of(stream);
  if (device < 0 || !questions.is_default(device, pool)) return leave(asked.call);
  return serve_at(asked, device, out, size_bytes, order, true);
}

// Pitched memory of `rows` rows. 0 bytes, and more than there can be, are the runtime's.
template <class Address>
bool serve_rows(const Asked& asked, Address* out, std::size_t* pitch_bytes,
                std::size_t& width_bytes, std::size_t rows) noexcept {
  const std::size_t pitch = round_up(width_bytes, kPitchBytes);
  std::size_t size_bytes = 0;
  if (pitch_bytes == nullptr || pitch < width_bytes ||
      __builtin_mul_overflow(pitch, rows, &size_bytes)) {
    return leave(asked.call);
  }
  if (!serve(asked, out, size_bytes)) {
    if (size_bytes == kMoreThanThereIs) width_bytes = kMoreThanThereIs / rows;
    return false;
  }
  *pitch_bytes = pitch;
  return true;
}

// Passes a free on unless it was done. In our memory the runtime would free the whole span that
// begins at the address. So it is asked to free an address that no memory has: it refuses that, and
// sets its last error.
template <class Result, class Address, class... Arguments>
Result answer_free(ServedMemory::Freed freed, Result (*next)(Address, Arguments...),
                   Address address, Arguments... arguments) noexcept {
  if (freed == ServedMemory::Freed::kYes) return Result{};
  if (freed == ServedMemory::Freed::kNoBlock) {
    void* const nobodys = reinterpret_cast<void*>(1);
    address = reinterpret_cast<Address>(nobodys);
  }
  return pass_on(next, address, arguments...);
}

template <class Address>
void* pointer_of(Address address) {
  return reinterpret_cast<void*>(address);
}

template <class Result, class Address>
Result release(Address address, ServedMemory::Frees frees, Result (*next)(Address)) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const auto freed =
      memory != nullptr ? memory->free(pointer_of(address), frees) : ServedMemory::Freed::kNotOurs;
  return answer_free(freed, next, address);
}
template <class Result, class Address, class Stream>
Result release_in_order(Address address, Stream stream, StreamHandle order,
                        int (*device_of)(Stream) noexcept,
                        Result (*next)(Address, Stream)) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr ? device_of(stream) : -1;
  const auto freed = device >= 0 ? memory->free_async(pointer_of(address), device, order)
                                 : ServedMemory::Freed::kNotOurs;
  return answer_free(freed, next, address, stream);
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
inline bool hides_management(const ServedMemory::Range& block) noexcept {
  return block.kind == ServedMemory::Kind::kDevice && calls_memory_devices();
}

// A wait of the program for a device, by its current context or by one that the call names.
template <class DeviceOf, class Result, class... Context>
Result synchronize(DeviceOf device_of, Result (*next)(Context...), Context... context) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr && next != nullptr ? device_of() : -1;
  if (device < 0) return pass_on(next, context...);
  Result result{};
  memory->free_after(device, [&] {
    result = next(context...);
    return result == Result{};
  });
  return result;
}

}  // namespace uvm::preload
