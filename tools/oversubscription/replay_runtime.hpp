// Presents a replay as a DeviceRuntime with one device, for components that send hints to a driver.
// Its memory has the recorded addresses. It supports only the calls that hints need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "sim/replay/hint_policy.hpp"

namespace uvm::oversubscription {

class ReplayRuntime final : public DeviceRuntime {
 public:
  explicit ReplayRuntime(const uvmsim::replay::Recording& recording) : recording_(recording) {}

  // Sets the target of calls, until the next use_hints().
  void use_hints(uvmsim::replay::Hints& hints) { hints_ = &hints; }

  // Returns the handle of a stream of the recording.
  static StreamHandle handle_of(std::uint32_t stream);

  std::string_view name() const override { return "replay"; }
  int device_count() const override { return 1; }
  RuntimeStatus describe(int device, DeviceDescription* out) const override;
  RuntimeStatus memory_figures(int device, MemoryFigures* out) const override;
  RuntimeStatus pointer_attributes(const void* address, PointerAttributes* out) const override;
  RuntimeStatus allocate_managed(int device, std::size_t size_bytes, void** out) const override;
  RuntimeStatus free_managed(int device, void* address) const override;

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
  RuntimeStatus destroy_event(int device, EventHandle event) const override;
  RuntimeStatus record_event(int device, EventHandle event, StreamHandle stream) const override;
  RuntimeStatus query_event(int device, EventHandle event) const override;
  RuntimeStatus synchronize_event(int device, EventHandle event) const override;
  RuntimeStatus synchronize_device(int device) const override;

 private:
  // Returns nullopt if a part of the range is not in the recording.
  std::optional<uvmsim::PageRange> pages_at(const void* address, std::size_t size_bytes) const;

  const uvmsim::replay::Recording& recording_;
  uvmsim::replay::Hints* hints_ = nullptr;
  mutable unsigned made_streams_ = 0;
  // By event: the replay's event, once recorded.
  mutable std::vector<std::optional<std::uint32_t>> events_;
};

}  // namespace uvm::oversubscription
