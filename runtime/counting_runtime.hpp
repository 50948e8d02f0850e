// A DeviceRuntime that counts calls and forwards them. The counters are relaxed atomics, one for
// each kind of call. They are this object's own until count_in() names others.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

class CountingRuntime final : public DeviceRuntime {
 public:
  explicit CountingRuntime(std::unique_ptr<DeviceRuntime> inner) : inner_(std::move(inner)) {}
  CountingRuntime(const CountingRuntime&) = delete;
  CountingRuntime& operator=(const CountingRuntime&) = delete;

  static constexpr std::size_t kCallKinds = 22;
  using Counters = std::array<std::atomic<std::uint64_t>, kCallKinds>;

  // Adds the counts so far to `counters`, and counts there from now on. Must be called before other
  // threads use this object. `counters` must outlive this object.
  void count_in(Counters* counters);

  // Calls so far, by the name of the DeviceRuntime method. Methods that were never called are left
  // out.
  using Calls = std::map<std::string, std::uint64_t>;
  Calls calls() const;
  static Calls named(const Counters& counters);

  std::string_view name() const override { return inner_->name(); }
  int device_count() const override { return inner_->device_count(); }
  // Not counted: these do no work on a device.
  bool has_context(int device) const override { return inner_->has_context(device); }
  void lose_context(int device) const override { inner_->lose_context(device); }
  void renew_context(int device) const override { inner_->renew_context(device); }
  std::chrono::nanoseconds now() const override { return inner_->now(); }
  RuntimeStatus describe(int device, DeviceDescription* out) const override;
  RuntimeStatus memory_figures(int device, MemoryFigures* out) const override;
  RuntimeStatus has_fast_link(int device, int peer, bool* out) const override;
  RuntimeStatus pointer_attributes(const void* address, PointerAttributes* out) const override;
  RuntimeStatus allocate_managed(int device, std::size_t size_bytes, void** out) const override;
  RuntimeStatus free_managed(int device, void* address) const override;
  RuntimeStatus allow_coarse_grain(int device, void* address,
                                   std::size_t size_bytes) const override;
  RuntimeStatus advise(int device, void* address, std::size_t size_bytes, Advice advice,
                       Place place) const override;
  RuntimeStatus prefetch(int device, void* address, std::size_t size_bytes, Place destination,
                         StreamHandle stream) const override;
  RuntimeStatus discard(int device, void* address, std::size_t size_bytes,
                        StreamHandle stream) const override;
  RuntimeStatus copy(int device, void* destination, const void* source, std::size_t size_bytes,
                     StreamHandle stream) const override;
  RuntimeStatus create_stream(int device, StreamHandle* out) const override;
  RuntimeStatus destroy_stream(int device, StreamHandle stream) const override;
  RuntimeStatus synchronize_stream(int device, StreamHandle stream) const override;
  RuntimeStatus stream_wait_event(int device, StreamHandle stream,
                                  EventHandle event) const override;
  RuntimeStatus is_capturing(int device, StreamHandle stream, bool* out) const override;
  RuntimeStatus create_event(int device, EventHandle* out) const override;
  // Counted as create_event and query_event.
  RuntimeStatus create_timed_event(int device, EventHandle* out) const override;
  RuntimeStatus time_between(int device, EventHandle from, EventHandle to,
                             std::chrono::nanoseconds* out) const override;
  RuntimeStatus destroy_event(int device, EventHandle event) const override;
  RuntimeStatus record_event(int device, EventHandle event, StreamHandle stream) const override;
  RuntimeStatus query_event(int device, EventHandle event) const override;
  RuntimeStatus synchronize_event(int device, EventHandle event) const override;
  RuntimeStatus synchronize_device(int device) const override;

 private:
  enum Call : std::size_t {
    kDescribe,
    kMemoryFigures,
    kHasFastLink,
    kPointerAttributes,
    kAllocateManaged,
    kFreeManaged,
    kAllowCoarseGrain,
    kAdvise,
    kPrefetch,
    kDiscard,
    kCopy,
    kCreateStream,
    kDestroyStream,
    kSynchronizeStream,
    kStreamWaitEvent,
    kIsCapturing,
    kCreateEvent,
    kDestroyEvent,
    kRecordEvent,
    kQueryEvent,
    kSynchronizeEvent,
    kSynchronizeDevice
  };
  static_assert(kSynchronizeDevice + 1 == kCallKinds);
  const DeviceRuntime& counted(Call call) const {
    (*calls_)[call].fetch_add(1, std::memory_order_relaxed);
    return *inner_;
  }

  std::unique_ptr<DeviceRuntime> inner_;
  mutable Counters own_calls_{};
  Counters* calls_ = &own_calls_;
};

}  // namespace uvm
