#include "allocator/placement/bulk_moves.hpp"

#include <algorithm>

#include "hints/policy.hpp"

namespace uvm {
namespace {

// Calls `send(piece)` for pieces of the pages, until `send` returns false.
template <class Send>
bool each_piece(const PageSpan& pages, Send send) {
  for (std::size_t sent = 0; sent < pages.count;) {
    const std::size_t count = std::min(policy::kBulkPiecePages, pages.count - sent);
    if (!send(PageSpan{pages.first + sent, count})) return false;
    sent += count;
  }
  return true;
}

bool overlap(const PageSpan& one, const PageSpan& other) {
  return one.first < other.end() && other.first < one.end();
}

}  // namespace

BulkMoves::~BulkMoves() {
  if (machine_.in_forked_child()) return;
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    Device& device = devices_[number];
    const int index = static_cast<int>(number);
    while (!device.leaving.empty()) drop_first(device, index);
    for (const Coming& each : device.coming) machine_.events.release(index, each.here);
    for (const auto* lanes : {&device.out, &device.in}) {
      for (const StreamHandle lane : *lanes) {
        if (lane != nullptr) machine_.runtime.destroy_stream(index, lane);
      }
    }
  }
}

void BulkMoves::forget_device(int device) noexcept {
  const std::lock_guard lock(mutex_);
  at(device) = {};  // the event pool forgets the device's events too
}

bool BulkMoves::open(std::array<StreamHandle, kLanes>* lanes, int device) {
  return std::ranges::all_of(*lanes, [&](StreamHandle& lane) {
    return lane != nullptr || machine_.runtime.create_stream(device, &lane).ok();
  });
}

void BulkMoves::drop_first(Device& device, int number) {
  const Leaving& first = device.leaving.front();
  device.leaving_pages -= first.pages.count;
  machine_.events.release(number, first.left);
  device.leaving.pop_front();
}

// Prefetches on two lanes may finish out of order.
void BulkMoves::drop_finished(Device& device, int number) {
  while (!device.coming.empty() &&
         machine_.runtime.query_event(number, device.coming.front().here).ok()) {
    machine_.events.release(number, device.coming.front().here);
    device.coming.pop_front();
  }
}

void BulkMoves::wait_if_coming(Device& device, const DeviceStream& stream, const PageSpan& pages) {
  for (const Coming& each : device.coming) {
    if (overlap(each.pages, pages))
      (void)machine_.runtime.stream_wait_event(stream.device, stream.handle, each.here);
  }
}

bool BulkMoves::wait_for(const PageSpan& pages, const DeviceStream& stream) {
  const std::lock_guard lock(mutex_);
  Device& device = at(stream.device);
  drop_finished(device, stream.device);
  if (!device.coming.empty() && machine_.events.may_wait(stream))
    wait_if_coming(device, stream, pages);
  return !device.coming.empty();
}

bool BulkMoves::leave(const PageSpan& pages, const DeviceStream& stream) {
  const std::lock_guard lock(mutex_);
  Device& device = at(stream.device);
  if (!open(&device.out, stream.device)) return false;
  for (const StreamHandle lane : device.out) {
    if (machine_.events.may_wait(stream)) machine_.events.order({stream.device, lane}, stream);
    wait_if_coming(device, {stream.device, lane}, pages);
  }
  while (!device.leaving.empty() &&
         machine_.runtime.query_event(stream.device, device.leaving.front().left).ok())
    drop_first(device, stream.device);
  return each_piece(pages, [&](const PageSpan& piece) {
    const StreamHandle lane = device.out[device.pieces++ % kLanes];
    if (!prefetch(stream.device, piece, Place::host(), lane)) return false;
    RuntimeStatus status;
    const EventHandle left = machine_.events.record({stream.device, lane}, &status);
    if (left == nullptr) return true;  // without an event, the driver makes room for later pages
    device.leaving.push_back({piece, left});
    device.leaving_pages += piece.count;
    return true;
  });
}

// Makes the lane wait for pages in flight to the host, the oldest first, until at most
// `most_leaving` of these pages are left, and none of `pages`, which come back to the device.
void BulkMoves::wait_for_room(Device& device, int number, StreamHandle lane,
                              std::size_t most_leaving, const PageSpan& pages) {
  const auto last = std::find_if(device.leaving.rbegin(), device.leaving.rend(),
                                 [&](const Leaving& each) { return overlap(each.pages, pages); });
  auto overlapping = static_cast<std::size_t>(device.leaving.rend() - last);
  while (!device.leaving.empty() && (device.leaving_pages > most_leaving || overlapping > 0)) {
    (void)machine_.runtime.stream_wait_event(number, lane, device.leaving.front().left);
    drop_first(device, number);
    if (overlapping > 0) --overlapping;
  }
}

bool BulkMoves::come(const PageSpan& pages, std::size_t room_bytes, const DeviceStream& stream,
                     bool waits) {
  const std::lock_guard lock(mutex_);
  Device& device = at(stream.device);
  if (!open(&device.in, stream.device)) return false;
  std::size_t room = room_bytes / kPageBytes;
  const bool all_sent = each_piece(pages, [&](const PageSpan& piece) {
    const StreamHandle lane = device.in[device.pieces++ % kLanes];
    room -= std::min(room, piece.count);
    wait_for_room(device, stream.device, lane, room, piece);
    if (!prefetch(stream.device, piece, Place::device(stream.device), lane)) return false;
    if (waits) return true;
    RuntimeStatus status;
    const EventHandle here = machine_.events.record({stream.device, lane}, &status);
    if (here == nullptr) {
      waits = true;
    } else {
      device.coming.push_back({piece, here});
    }
    return true;
  });
  if (!waits) return all_sent;
  for (const StreamHandle lane : device.in) {
    const DeviceStream own{stream.device, lane};
    if (!machine_.events.may_wait(stream)) continue;
    if (!machine_.events.order(stream, own))
      (void)machine_.runtime.synchronize_stream(stream.device, lane);
  }
  return all_sent;
}

bool BulkMoves::prefetch(int device, const PageSpan& pages, Place place, StreamHandle lane) {
  const std::size_t size_bytes = pages.count * kPageBytes;
  const RuntimeStatus status =
      machine_.runtime.prefetch(device, start_of_page(pages.first), size_bytes, place, lane);
  machine_.figure_store.hints().count(HintKind::kPrefetch, size_bytes, status.ok());
  if (TraceRecorder& trace = machine_.trace; trace.enabled()) {
    const char* address = start_of_page(pages.first);
    if (status.ok()) {
      trace.prefetched(trace.now(), device, address, size_bytes, place, lane);
    } else {
      trace.call_failed(trace.now(), device, address, size_bytes, status);
    }
  }
  return status.ok();
}

}  // namespace uvm
