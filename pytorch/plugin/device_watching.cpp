// The part of DeviceFacade that reports memory to torch's memory history and snapshots, to its
// profiler, and to the tracers of libraries.
#include <algorithm>
#include <utility>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>

#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/torch_statistics.hpp"

namespace uvm::torch_plugin {
namespace {

StreamKey key_of(const BlockDescription& block) {
  return {block.facade, block.device, block.stream, block.private_pool};
}

c10::DeviceIndex device_of(const BlockDescription& block) {
  return static_cast<c10::DeviceIndex>(block.device);
}

// Returns the live and the reserved bytes of device memory on the device.
std::pair<std::size_t, std::size_t> held_bytes(c10::DeviceIndex device) {
  const Statistics now = allocator().statistics();
  const auto& figures = now.classes[static_cast<std::size_t>(Facade::kDevice)].at(
      static_cast<std::size_t>(device))[kSizeClasses];
  return {figures.allocated_bytes.current, figures.reserved_bytes.current};
}

// `change_bytes` is negative for a block that was freed.
void report_to_profiler(void* address, int64_t change_bytes, c10::DeviceIndex device) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto [live, reserved] = held_bytes(device);
  c10::reportMemoryUsageToProfiler(address, change_bytes, live, reserved,
                                   c10::Device(c10::kCUDA, device));
}

}  // namespace

// Reports a block to the same observers as torch's own allocator does.
void DeviceFacade::report_allocated(void* address, size_t size_bytes,
                                    const MemoryHistory::Context& context) {
  const auto block = allocator().find(address);
  if (!block) return;
  if (history_.is_watched()) history_.allocated(key_of(*block), address, size_bytes, context);
  report_to_profiler(address, static_cast<int64_t>(block->size_bytes), device_of(*block));
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address_of(address));
  }
}

void DeviceFacade::report_freed(void* address) {
  // Another thread may have held the history's lock when the process was forked.
  if (allocator().inspection().in_forked_child()) return;
  const auto block = allocator().find(address);
  if (!block || !block->live || block->base != address) return;
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address_of(address));
  }
  if (block->facade != Facade::kDevice) return;
  report_to_profiler(address, -static_cast<int64_t>(block->size_bytes), device_of(*block));
  if (history_.is_watched()) {
    history_.free_requested(key_of(*block), address, block->requested_bytes,
                            history_.gather(native::RecordContext::ALL), block->waits_when_freed);
  }
}

native::SnapshotInfo DeviceFacade::snapshot(c10::MempoolId_t pool, bool include_traces) {
  native::SnapshotInfo info;
  // Adds the segments of torch's native allocator, and the settings of PYTORCH_ALLOC_CONF. Torch's
  // other backend has no snapshots.
  if (has_native() && previous_->name() == "native") info = previous_->snapshot(pool, false);
  const std::vector<SegmentDescription> segments = allocator().inspection().segments();
  add_segments(segments, pool, history_, &info.segments);
  std::sort(info.segments.begin(), info.segments.end(),
            [](const auto& left, const auto& right) { return left.address < right.address; });
  const int devices = allocator().inspection().runtime().device_count();
  info.device_traces.assign(static_cast<std::size_t>(devices), {});
  for (int device = 0; device < devices; ++device) {
    const auto of = static_cast<c10::DeviceIndex>(device);
    if (include_traces)
      info.device_traces[static_cast<std::size_t>(device)] = history_.trace_of(of);
    std::size_t active_bytes = 0;
    for (const auto& segment : info.segments) {
      if (segment.device == of) active_bytes += segment.active_size;
    }
    if (history_.is_watched()) history_.snapshot_taken(of, active_bytes, pool);
  }
  info.external_annotations = history_.annotations();
  return info;
}

void DeviceFacade::recordHistory(bool enabled, native::CreateContextFn gather, size_t most_entries,
                                 native::RecordContext when, bool clear,
                                 const std::vector<std::string>& skip_actions) {
  history_.record(enabled, gather, most_entries, when, clear, skip_actions);
}

void DeviceFacade::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& by) {
  history_.annotate(c10::cuda::current_device(), by);
}

void DeviceFacade::pushCompileContext(std::string& context) {
  history_.push_compile_context(context);
}

void DeviceFacade::popCompileContext() {
  history_.pop_compile_context();
}

void DeviceFacade::setUserMetadata(const std::string& metadata) {
  history_.set_user_metadata(metadata);
}

std::string DeviceFacade::getUserMetadata() {
  return history_.user_metadata();
}

void DeviceFacade::annotateMemory(const void* address, const std::string& note) {
  if (!history_.is_recording()) return;
  const auto block = allocator().find(address);
  // Memory of torch's own allocator and blocks that were moved to the device have no history.
  if (block ? block->facade != Facade::kDevice : native_holds_memory()) return;
  TORCH_CHECK(block && block->live && block->base == address,
              "annotateMemory: no live allocation found at pointer ", address);
  history_.annotated(key_of(*block), address, block->requested_bytes,
                     history_.gather(native::RecordContext::ALLOC), note);
}

void DeviceFacade::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  history_.attach(std::move(tracker));
}

}  // namespace uvm::torch_plugin
