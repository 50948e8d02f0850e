#include "preload/graph_parts.hpp"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "allocator/interface.hpp"
#include "allocator/process/process_allocator.hpp"

namespace uvm::preload {

std::vector<std::vector<std::size_t>> pieces_of(std::size_t count,
                                                std::span<const NodeOrder> dependencies) {
  std::vector<std::vector<std::size_t>> later(count);
  std::vector<std::size_t> earlier(count);  // the number of direct dependencies
  for (const NodeOrder& each : dependencies) {
    later[each.from].push_back(each.to);
    ++earlier[each.to];
  }
  std::vector<std::size_t> waits_for = earlier;
  std::queue<std::size_t> ready;
  for (std::size_t node = 0; node < count; ++node) {
    if (waits_for[node] == 0) ready.push(node);
  }
  std::vector<std::vector<std::size_t>> pieces;
  bool begins_piece = true;
  std::size_t open = 0;        // dependencies of nodes that are in no piece yet on nodes in pieces
  bool has_loose_end = false;  // no node depends on some node of the pieces
  while (!ready.empty()) {
    const std::size_t node = ready.front();
    ready.pop();
    if (begins_piece) pieces.emplace_back();
    pieces.back().push_back(node);
    open -= earlier[node];
    // Then all other nodes come before this one, or after it.
    begins_piece = ready.empty() && open == 0 && !has_loose_end;
    open += later[node].size();
    has_loose_end = has_loose_end || later[node].empty();
    for (const std::size_t next : later[node]) {
      if (--waits_for[next] == 0) ready.push(next);
    }
  }
  return pieces;
}

std::vector<std::vector<std::size_t>> joined_pieces(
    std::span<const std::vector<std::size_t>> pieces, std::size_t most_bytes,
    const std::function<std::vector<live::UseRange>(std::size_t node)>& ranges_of) {
  std::vector<std::vector<std::size_t>> joined;
  std::unordered_set<std::uintptr_t> used;  // addresses in the last joined piece
  std::size_t used_bytes = 0;
  for (const std::vector<std::size_t>& piece : pieces) {
    const auto add_uses = [&] {
      for (const std::size_t node : piece) {
        for (const live::UseRange& use : ranges_of(node)) {
          if (used.insert(use.address).second) used_bytes += use.size_bytes;
        }
      }
    };
    const std::size_t before_bytes = used_bytes;
    add_uses();
    if (!joined.empty() && (used_bytes <= most_bytes || used_bytes == before_bytes)) {
      joined.back().insert(joined.back().end(), piece.begin(), piece.end());
      continue;
    }
    joined.push_back(piece);
    used.clear();
    used_bytes = 0;
    add_uses();
  }
  return joined;
}

GraphParts::~GraphParts() {
  drop();
  const CachingManagedAllocator* ours = process_allocator();
  if (launched_ != nullptr && ours != nullptr && !ours->inspection().in_forked_child())
    (void)ours->inspection().runtime().destroy_event(device_, launched_);
}

void GraphParts::add(Part part) {
  const std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
}

void GraphParts::drop() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Part& part : parts_) destroy_(part.executable);
  parts_.clear();
}

void GraphParts::wait_for_last_launch(int device, StreamHandle stream) noexcept {
  const CachingManagedAllocator* ours = process_allocator();
  if (launched_ == nullptr || ours == nullptr || (device == device_ && stream == stream_)) return;
  (void)ours->inspection().runtime().stream_wait_event(device, stream, launched_);
}

void GraphParts::note_launch(int device, StreamHandle stream) noexcept {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr) return;
  const DeviceRuntime& runtime = ours->inspection().runtime();
  if (device != device_) {
    if (launched_ != nullptr) (void)runtime.destroy_event(device_, launched_);
    launched_ = nullptr;
  }
  device_ = device;
  stream_ = stream;
  if (launched_ == nullptr && !runtime.create_event(device, &launched_).ok()) return;
  (void)runtime.record_event(device, launched_, stream);
}

}  // namespace uvm::preload
