// The calls that uvmalloc makes to the machine. A DeviceRuntime serves all devices of one vendor.
// It stores only configuration and bound entry points; its callers keep track of what is allocated
// and where.
//
// Every method is const, and any thread may call it, with or without a current context: it enters
// the context of its device and restores the caller's context. Methods return a status and never
// throw.
//
// Streams and events are the vendor's own handles, passed through. Stream nullptr is the device's
// default stream; kPerThreadStream is the per-thread stream of the calling thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <uvmalloc/place.hpp>

namespace uvm {

using StreamHandle = void*;
using EventHandle = void*;

// The same value in CUDA (CU_STREAM_PER_THREAD) and HIP. Names a different stream in each thread.
inline const StreamHandle kPerThreadStream = reinterpret_cast<StreamHandle>(2);

enum class RuntimeError : std::uint8_t {
  kNone,
  kNotReady,      // an event or stream has pending work; this is not a failure
  kOutOfMemory,   // the machine's memory is exhausted; used for no other failure
  kNotSupported,  // this device or driver cannot do it
  kInvalidValue,  // an argument is wrong
  kNoDevice,      // the device does not exist, or the machine has none
  kNotUsable,     // in a forked child, after exit began, or not initialised
  kCapture,       // refused because a stream is being captured
  kOther,
};

// Returns the number of the calling thread. The number is not 0, and no other thread ever gets it.
std::uint64_t this_thread_number();

// One stream of one device.
struct DeviceStream {
  int device = -1;
  StreamHandle handle = nullptr;
  // The thread of a per-thread stream, or 0 for a stream of all threads. Values from kFirstGone on
  // mark destroyed streams, and distinguish them from other streams with the same handle.
  std::uint64_t thread = 0;
  static constexpr std::uint64_t kFirstGone = std::uint64_t{1} << 63;

  // Returns the stream that the handle refers to on the calling thread.
  static DeviceStream named(int device, StreamHandle handle) {
    return {device, handle, thread_of(handle)};
  }
  static std::uint64_t thread_of(StreamHandle handle) {
    return handle == kPerThreadStream ? this_thread_number() : 0;
  }
  bool exists() const { return device >= 0; }
  bool is_gone() const { return thread >= kFirstGone; }
  // Returns whether the calling thread can pass the handle of this stream to a call.
  bool can_be_named() const { return thread == 0 || thread == this_thread_number(); }
  // Both are declared, because nvcc does not derive == from <=>.
  friend auto operator<=>(const DeviceStream&, const DeviceStream&) = default;
  friend bool operator==(const DeviceStream&, const DeviceStream&) = default;
};

struct RuntimeStatus {
  RuntimeError error = RuntimeError::kNone;
  int native_code = 0;           // the vendor's own value
  std::string_view native_name;  // for example "CUDA_ERROR_OUT_OF_MEMORY"; static storage
  std::string_view call;         // the vendor's entry point; static storage

  bool ok() const { return error == RuntimeError::kNone; }
  // For example "cuMemAllocManaged: CUDA_ERROR_OUT_OF_MEMORY (2)", or "ok".
  std::string text() const;
};

struct DeviceCapabilities {
  bool managed_memory = false;
  bool concurrent_managed_access = false;  // the host may use managed memory while the device works
  bool migrates_on_fault = false;          // pages migrate to their user; uvmalloc requires this
  bool pageable_memory_access = false;     // the device reaches ordinary host memory (HMM or ATS)
  bool host_page_tables = false;     // the device uses the host's page tables (coherent hardware)
  bool direct_host_access = false;   // the host reads device-resident managed memory in place
  bool integrated = false;           // the device shares the host's memory
  bool memory_is_host_node = false;  // the device's memory counts as a NUMA node of the host
  bool discard = false;
  bool batches = false;          // one call moves many ranges (CUDA 13.0 and later)
  bool finds_pages = false;      // find_pages() works (CUDA 13.4 and later)
  bool coarse_grain = false;     // allow_coarse_grain() has an effect
  bool prefetch_blocks = false;  // a prefetch waits for its copy on the calling thread
  int compute_major = 0;
  int compute_minor = 0;
};

struct DeviceDescription {
  std::string name;
  std::size_t total_bytes = 0;
  DeviceCapabilities capabilities;
  std::string why_pages_stay;    // if pages do not migrate on a fault: the reason as a clause
  std::string bus_address = {};  // domain, bus and device in hexadecimal; empty: unknown
};

// Returns why uvmalloc cannot use managed memory of the device, in one line; empty if it can.
std::string why_not_usable(int device, const DeviceDescription& description);

struct MemoryFigures {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

// A managed range, and the destination of its pages.
struct RangeMove {
  void* address = nullptr;
  std::size_t size_bytes = 0;
  Place destination = Place::nowhere();  // not used for a discard
  friend bool operator==(const RangeMove&, const RangeMove&) = default;
};

enum class PointerKind : std::uint8_t { kUnknown, kHost, kDevice, kManaged };

struct PointerAttributes {
  PointerKind kind = PointerKind::kUnknown;
  int device = -1;  // the device of the allocation; the pages may be elsewhere
};

enum class Advice : std::uint8_t {
  kSetReadMostly = 1,
  kUnsetReadMostly,
  kSetPreferredLocation,
  kUnsetPreferredLocation,
  kSetAccessedBy,
  kUnsetAccessedBy,
};
std::string_view to_string(Advice advice);

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string_view name() const = 0;
  virtual int device_count() const = 0;
  // Returns kNoDevice if the device does not exist.
  virtual RuntimeStatus describe(int device, DeviceDescription* out) const = 0;
  virtual RuntimeStatus memory_figures(int device, MemoryFigures* out) const = 0;
  // Sets `*out` to whether pages reach the device faster from `peer` than from the host, because
  // the two devices can access each other's memory over a link that is not the host's bus. False if
  // unknown.
  virtual RuntimeStatus has_fast_link(int /*device*/, int /*peer*/, bool* out) const {
    *out = false;
    return {};
  }
  // Returns whether the device accepts work without a new context. Always true if the runtime has
  // no contexts.
  virtual bool has_context(int /*device*/) const { return true; }
  // lose_context() is called when the program has destroyed the context of the device, with all
  // memory, streams and events in it. Until renew_context(), calls for the device do not reach the
  // driver and return kNotUsable. Afterwards these calls use the new context that the driver makes.
  virtual void lose_context(int /*device*/) const {}
  virtual void renew_context(int /*device*/) const {}
  virtual RuntimeStatus pointer_attributes(const void* address, PointerAttributes* out) const = 0;

  // Allocates `size_bytes` bytes of managed memory, attached to all devices. The memory is
  // allocated and freed in the context of `device`, so that a free on a thread without a context
  // does not create a second context. Contents are undefined. A free may wait for the device.
  // Neither call disturbs a capture of any thread; during a capture, a driver may refuse allocation
  // and advice (kCapture).
  virtual RuntimeStatus allocate_managed(int device, std::size_t size_bytes, void** out) const = 0;
  virtual RuntimeStatus free_managed(int device, void* address) const = 0;
  // Promises, for a whole managed allocation, that the host reads results of kernels of `device`
  // only after the kernels have ended. The device may then cache the memory and use its own atomic
  // operations. This is a hint: a refusal has no effect.
  virtual RuntimeStatus allow_coarse_grain(int /*device*/, void* /*address*/,
                                           std::size_t /*size_bytes*/) const {
    return {};
  }

  // Hints, sent in the context of `device`. The driver rounds ranges outward to pages of the host.
  virtual RuntimeStatus advise(int device, void* address, std::size_t size_bytes, Advice advice,
                               Place place) const = 0;
  // Stream-ordered. May block the calling thread if the destination is the host.
  virtual RuntimeStatus prefetch(int device, void* address, std::size_t size_bytes,
                                 Place destination, StreamHandle stream) const = 0;
  // Stream-ordered: the contents become undefined. kNotSupported if capabilities.discard is false.
  virtual RuntimeStatus discard(int device, void* address, std::size_t size_bytes,
                                StreamHandle stream) const = 0;
  // The same for 1 to kMostBatchMoves ranges, which do not overlap, in one call. The driver handles
  // the ranges in any order; later work of the stream waits for all ranges. `stream` is not a
  // default stream. kNotSupported if capabilities.batches is false. Even if it is true, a driver
  // may refuse batches, for example because another device of the machine has no concurrent access.
  // After a failure each range may or may not have been handled.
  static constexpr std::size_t kMostBatchMoves = 64;
  virtual RuntimeStatus prefetch_batch(int /*device*/, std::span<const RangeMove> /*moves*/,
                                       StreamHandle /*stream*/) const {
    return {RuntimeError::kNotSupported, 0, "the runtime does not support batched calls",
            "prefetch_batch"};
  }
  virtual RuntimeStatus discard_batch(int /*device*/, std::span<const RangeMove> /*moves*/,
                                      StreamHandle /*stream*/) const {
    return {RuntimeError::kNotSupported, 0, "the runtime does not support batched calls",
            "discard_batch"};
  }
  // Discards the ranges, and then prefetches them.
  virtual RuntimeStatus discard_and_prefetch_batch(int /*device*/,
                                                   std::span<const RangeMove> /*moves*/,
                                                   StreamHandle /*stream*/) const {
    return {RuntimeError::kNotSupported, 0, "the runtime does not support batched calls",
            "discard_and_prefetch_batch"};
  }
  // Gets where the memory of a managed range is resident now: one place for each part of
  // `page_bytes` bytes, or nowhere() if the part was never touched. The place of a part is that of
  // one host page in the part. Moves that streams have not executed yet are not seen. kNotSupported
  // if capabilities.finds_pages is false.
  virtual RuntimeStatus find_pages(int /*device*/, const void* /*address*/,
                                   std::size_t /*size_bytes*/, std::size_t /*page_bytes*/,
                                   Place* /*out*/) const {
    return {RuntimeError::kNotSupported, 0, "the driver does not report it", "find_pages"};
  }
  // Copies, in stream order, between any two addresses that the device can access.
  virtual RuntimeStatus copy(int device, void* destination, const void* source,
                             std::size_t size_bytes, StreamHandle stream) const = 0;

  // The streams are non-blocking: they have no implicit order with the default stream.
  virtual RuntimeStatus create_stream(int device, StreamHandle* out) const = 0;
  virtual RuntimeStatus destroy_stream(int device, StreamHandle stream) const = 0;
  virtual RuntimeStatus synchronize_stream(int device, StreamHandle stream) const = 0;
  virtual RuntimeStatus stream_wait_event(int device, StreamHandle stream,
                                          EventHandle event) const = 0;
  virtual RuntimeStatus is_capturing(int device, StreamHandle stream, bool* out) const = 0;

  // The events have no timing.
  virtual RuntimeStatus create_event(int device, EventHandle* out) const = 0;
  // Creates an event with timing, for time_between(). Returns kNotSupported if the runtime has no
  // such events.
  virtual RuntimeStatus create_timed_event(int /*device*/, EventHandle* /*out*/) const {
    return {RuntimeError::kNotSupported, 0, "no events with timing", "create_timed_event"};
  }
  virtual RuntimeStatus destroy_event(int device, EventHandle event) const = 0;
  virtual RuntimeStatus record_event(int device, EventHandle event, StreamHandle stream) const = 0;
  // Returns kNone if the event is complete, or kNotReady. query_event(), synchronize_event(),
  // time_between() and waits for a stream that is not being captured do not disturb a capture.
  virtual RuntimeStatus query_event(int device, EventHandle event) const = 0;
  virtual RuntimeStatus synchronize_event(int device, EventHandle event) const = 0;
  // Gets the device's time between two timed events; kNotReady if one of them is not complete.
  virtual RuntimeStatus time_between(int /*device*/, EventHandle /*from*/, EventHandle /*to*/,
                                     std::chrono::nanoseconds* /*out*/) const {
    return {RuntimeError::kNotSupported, 0, "no events with timing", "time_between"};
  }
  virtual RuntimeStatus synchronize_device(int device) const = 0;

  // Returns the time of a clock that runs while devices work. Only differences matter. Tests
  // replace this clock.
  virtual std::chrono::nanoseconds now() const {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
};

}  // namespace uvm
