#include "runtime/counting_runtime.hpp"

namespace uvm {

void CountingRuntime::count_in(Counters* counters) {
  for (std::size_t call = 0; call < kCallKinds; ++call) {
    (*counters)[call] += (*calls_)[call].load();
  }
  calls_ = counters;
}

CountingRuntime::Calls CountingRuntime::calls() const {
  return named(*calls_);
}

CountingRuntime::Calls CountingRuntime::named(const Counters& counters) {
  static constexpr const char* kNames[kCallKinds] = {"describe",
                                                     "memory_figures",
                                                     "has_fast_link",
                                                     "pointer_attributes",
                                                     "allocate_managed",
                                                     "free_managed",
                                                     "allow_coarse_grain",
                                                     "advise",
                                                     "prefetch",
                                                     "discard",
                                                     "copy",
                                                     "create_stream",
                                                     "destroy_stream",
                                                     "synchronize_stream",
                                                     "stream_wait_event",
                                                     "is_capturing",
                                                     "create_event",
                                                     "destroy_event",
                                                     "record_event",
                                                     "query_event",
                                                     "synchronize_event",
                                                     "synchronize_device"};
  Calls out;
  for (std::size_t call = 0; call < kCallKinds; ++call) {
    if (auto count = counters[call].load(std::memory_order_relaxed); count != 0) {
      out[kNames[call]] = count;
    }
  }
  return out;
}

RuntimeStatus CountingRuntime::describe(int device, DeviceDescription* out) const {
  return counted(kDescribe).describe(device, out);
}
RuntimeStatus CountingRuntime::memory_figures(int device, MemoryFigures* out) const {
  return counted(kMemoryFigures).memory_figures(device, out);
}
RuntimeStatus CountingRuntime::has_fast_link(int device, int peer, bool* out) const {
  return counted(kHasFastLink).has_fast_link(device, peer, out);
}
RuntimeStatus CountingRuntime::pointer_attributes(const void* address,
                                                  PointerAttributes* out) const {
  return counted(kPointerAttributes).pointer_attributes(address, out);
}
RuntimeStatus CountingRuntime::allocate_managed(int device, std::size_t size_bytes,
                                                void** out) const {
  return counted(kAllocateManaged).allocate_managed(device, size_bytes, out);
}
RuntimeStatus CountingRuntime::free_managed(int device, void* address) const {
  return counted(kFreeManaged).free_managed(device, address);
}
RuntimeStatus CountingRuntime::allow_coarse_grain(int device, void* address,
                                                  std::size_t size_bytes) const {
  return counted(kAllowCoarseGrain).allow_coarse_grain(device, address, size_bytes);
}
RuntimeStatus CountingRuntime::advise(int device, void* address, std::size_t size_bytes,
                                      Advice advice, Place place) const {
  return counted(kAdvise).advise(device, address, size_bytes, advice, place);
}
RuntimeStatus CountingRuntime::prefetch(int device, void* address, std::size_t size_bytes,
                                        Place destination, StreamHandle stream) const {
  return counted(kPrefetch).prefetch(device, address, size_bytes, destination, stream);
}
RuntimeStatus CountingRuntime::discard(int device, void* address, std::size_t size_bytes,
                                       StreamHandle stream) const {
  return counted(kDiscard).discard(device, address, size_bytes, stream);
}
RuntimeStatus CountingRuntime::copy(int device, void* destination, const void* source,
                                    std::size_t size_bytes, StreamHandle stream) const {
  return counted(kCopy).copy(device, destination, source, size_bytes, stream);
}
RuntimeStatus CountingRuntime::create_stream(int device, StreamHandle* out) const {
  return counted(kCreateStream).create_stream(device, out);
}
RuntimeStatus CountingRuntime::destroy_stream(int device, StreamHandle stream) const {
  return counted(kDestroyStream).destroy_stream(device, stream);
}
RuntimeStatus CountingRuntime::synchronize_stream(int device, StreamHandle stream) const {
  return counted(kSynchronizeStream).synchronize_stream(device, stream);
}
RuntimeStatus CountingRuntime::stream_wait_event(int device, StreamHandle stream,
                                                 EventHandle event) const {
  return counted(kStreamWaitEvent).stream_wait_event(device, stream, event);
}
RuntimeStatus CountingRuntime::is_capturing(int device, StreamHandle stream, bool* out) const {
  return counted(kIsCapturing).is_capturing(device, stream, out);
}
RuntimeStatus CountingRuntime::create_event(int device, EventHandle* out) const {
  return counted(kCreateEvent).create_event(device, out);
}

RuntimeStatus CountingRuntime::create_timed_event(int device, EventHandle* out) const {
  return counted(kCreateEvent).create_timed_event(device, out);
}

RuntimeStatus CountingRuntime::time_between(int device, EventHandle from, EventHandle to,
                                            std::chrono::nanoseconds* out) const {
  return counted(kQueryEvent).time_between(device, from, to, out);
}
RuntimeStatus CountingRuntime::destroy_event(int device, EventHandle event) const {
  return counted(kDestroyEvent).destroy_event(device, event);
}
RuntimeStatus CountingRuntime::record_event(int device, EventHandle event,
                                            StreamHandle stream) const {
  return counted(kRecordEvent).record_event(device, event, stream);
}
RuntimeStatus CountingRuntime::query_event(int device, EventHandle event) const {
  return counted(kQueryEvent).query_event(device, event);
}
RuntimeStatus CountingRuntime::synchronize_event(int device, EventHandle event) const {
  return counted(kSynchronizeEvent).synchronize_event(device, event);
}
RuntimeStatus CountingRuntime::synchronize_device(int device) const {
  return counted(kSynchronizeDevice).synchronize_device(device);
}

}  // namespace uvm
