// A DeviceRuntime with managed memory that is only address space. Allocations are consecutive parts
// of one reserved range, and every other call succeeds at once. So measured memory and instructions
// are the allocator's own, without those of a machine. Owns the range. Its memory must not be
// touched.
#pragma once

#include <atomic>
#include <cstddef>

#include <uvmalloc/device_runtime.hpp>

namespace uvm::bench {

class ReservingRuntime final : public DeviceRuntime {
 public:
  ReservingRuntime();
  ~ReservingRuntime() override;
  ReservingRuntime(const ReservingRuntime&) = delete;
  ReservingRuntime& operator=(const ReservingRuntime&) = delete;

  std::string_view name() const override { return "reserving"; }
  int device_count() const override { return 1; }
  RuntimeStatus describe(int device, DeviceDescription* out) const override;
  RuntimeStatus memory_figures(int device, MemoryFigures* out) const override;
  RuntimeStatus pointer_attributes(const void* address, PointerAttributes* out) const override;
  RuntimeStatus allocate_managed(int device, std::size_t size_bytes, void** out) const override;
  RuntimeStatus free_managed(int, void*) const override { return {}; }
  RuntimeStatus advise(int, void*, std::size_t, Advice, Place) const override { return {}; }
  RuntimeStatus prefetch(int, void*, std::size_t, Place, StreamHandle) const override { return {}; }
  RuntimeStatus discard(int, void*, std::size_t, StreamHandle) const override { return {}; }
  RuntimeStatus copy(int, void*, const void*, std::size_t, StreamHandle) const override {
    return {};
  }
  RuntimeStatus create_stream(int, StreamHandle* out) const override { return handle(out); }
  RuntimeStatus destroy_stream(int, StreamHandle) const override { return {}; }
  RuntimeStatus synchronize_stream(int, StreamHandle) const override { return {}; }
  RuntimeStatus stream_wait_event(int, StreamHandle, EventHandle) const override { return {}; }
  RuntimeStatus is_capturing(int, StreamHandle, bool* out) const override {
    *out = false;
    return {};
  }
  RuntimeStatus create_event(int, EventHandle* out) const override { return handle(out); }
  RuntimeStatus destroy_event(int, EventHandle) const override { return {}; }
  RuntimeStatus record_event(int, EventHandle, StreamHandle) const override { return {}; }
  RuntimeStatus query_event(int, EventHandle) const override { return {}; }
  RuntimeStatus synchronize_event(int, EventHandle) const override { return {}; }
  RuntimeStatus synchronize_device(int) const override { return {}; }

 private:
  // Tools such as valgrind leave the process less address space.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 30;
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 30;

  static RuntimeStatus handle(void** out);

  std::size_t size_bytes_;
  std::byte* range_ = nullptr;
  std::byte* first_ = nullptr;  // 2 MiB aligned
  mutable std::atomic<std::size_t> used_bytes_{0};
};

}  // namespace uvm::bench
