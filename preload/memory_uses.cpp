#include "preload/memory_uses.hpp"

#include <algorithm>

#include "allocator/interface.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "preload/served_memory.hpp"

namespace uvm::preload {

void begin_to_note_uses(CachingManagedAllocator& allocator) {
  if (is_plugin_installed()) return;
  detail::may_want_uses.store(true, std::memory_order_relaxed);
  allocator.kernel_uses().set_listener(
      [](bool wants_uses) { detail::wants_uses.store(wants_uses, std::memory_order_relaxed); });
}

bool runs_now(int device, StreamHandle stream) {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || device < 0) return false;
  bool is_capturing = false;
  // The legacy default stream cannot be captured.
  return stream == nullptr ||
         (ours->inspection().runtime().is_capturing(device, stream, &is_capturing).ok() &&
          !is_capturing);
}

std::vector<live::UseRange> ranges_of(int device, const Words& words) {
  const CachingManagedAllocator* ours = process_allocator();
  const ServedMemory* served = ServedMemory::existing();
  std::vector<live::UseRange> uses;
  if (ours == nullptr || served == nullptr || ours->inspection().in_forked_child()) return uses;
  for (const std::uintptr_t word : words) {
    const bool is_known = std::ranges::any_of(
        uses, [&](const live::UseRange& use) { return word - use.address < use.size_bytes; });
    if (is_known) continue;
    const auto block = ours->find(reinterpret_cast<const void*>(word));
    if (!block || !block->live || block->location != Place::device(device)) continue;
    if (served->is_placed_by_program(block->base)) continue;
    uses.push_back({.address = reinterpret_cast<std::uintptr_t>(block->base),
                    .size_bytes = block->requested_bytes});
  }
  return uses;
}

std::vector<live::UseRange> ranges_of(int device, const Uses& uses) {
  std::vector<live::UseRange> ranges = ranges_of(device, uses.words);
  ranges.insert(ranges.end(), uses.ranges.begin(), uses.ranges.end());
  return ranges;
}

void note_words(int device, StreamHandle stream, const Words& words) {
  const std::vector<live::UseRange> uses = ranges_of(device, words);
  if (!uses.empty())
    process_allocator()->kernel_uses().note(device, stream, uses, live::Launch::kKernel);
}

void note_graph_uses(int device, StreamHandle stream, const Uses& uses) {
  const std::vector<live::UseRange> ranges = ranges_of(device, uses);
  if (CachingManagedAllocator* ours = process_allocator(); ours != nullptr && !ranges.empty())
    ours->kernel_uses().note(device, stream, ranges, live::Launch::kGraph);
}

bool wants_graph_uses() noexcept {
  const CachingManagedAllocator* ours = process_allocator();
  return ours != nullptr && ours->kernel_uses().wanted();
}

}  // namespace uvm::preload
