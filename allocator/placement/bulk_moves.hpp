// Moves many pages of a device at once, at the full rate of the link in both directions. Pages on
// the way to the host and pages on the way to the device use different streams. A piece for the
// device waits only for the evictions whose room it needs, so a swap of two sets of pages takes
// little longer than a move of the larger set.
//
// Thread-safe: a mutex is held across driver calls. Meanwhile the trace's lock is the only lock of
// the allocator that is taken. In a forked child only the destructor may be called.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "allocator/state/machine.hpp"
#include "hints/hint.hpp"
#include "storage/pages.hpp"

namespace uvm {

class BulkMoves {
 public:
  explicit BulkMoves(Machine& machine)
      : machine_(machine), devices_(static_cast<std::size_t>(machine.device_count())) {}
  ~BulkMoves();
  BulkMoves(const BulkMoves&) = delete;
  BulkMoves& operator=(const BulkMoves&) = delete;

  // Sends the pages to the host after the current work of `stream`. Returns false if the driver
  // refused a part; a page that the driver did not move stays where it was.
  bool leave(const PageSpan& pages, const DeviceStream& stream);
  // Sends the pages to the device of `stream`, whose later work waits for these pages.
  // `room_bytes`: the bytes that are free on the device after all evictions in flight. Without
  // `waits`, the stream does not wait; wait_for() makes it wait for some of the pages.
  bool come(const PageSpan& pages, std::size_t room_bytes, const DeviceStream& stream,
            bool waits = true);
  // Makes later work of the stream wait for those of the pages that are still in flight to the
  // device. Returns whether pages are in flight for which no stream waits yet.
  bool wait_for(const PageSpan& pages, const DeviceStream& stream);

  // Forgets the streams of a device whose context was destroyed, which destroyed them too.
  void forget_device(int device) noexcept;

 private:
  static constexpr std::size_t kLanes = 2;  // each way; one lane copies, one prepares
  struct Leaving {
    PageSpan pages;
    EventHandle left = nullptr;
  };
  struct Coming {
    PageSpan pages;
    EventHandle here = nullptr;
  };
  struct Device {
    std::array<StreamHandle, kLanes> out{};
    std::array<StreamHandle, kLanes> in{};
    std::size_t pieces = 0;       // sent so far; consecutive pieces use different lanes
    std::deque<Leaving> leaving;  // in the order of sending
    std::size_t leaving_pages = 0;
    std::deque<Coming> coming;  // pages sent without `waits`
  };

  Device& at(int device) { return devices_[static_cast<std::size_t>(device)]; }
  bool open(std::array<StreamHandle, kLanes>* lanes, int device);
  void drop_first(Device& device, int number);
  void drop_finished(Device& device, int number);
  void wait_if_coming(Device& device, const DeviceStream& stream, const PageSpan& pages);
  void wait_for_room(Device& device, int number, StreamHandle lane, std::size_t most_leaving,
                     const PageSpan& pages);
  bool prefetch(int device, const PageSpan& pages, Place place, StreamHandle lane);

  Machine& machine_;
  std::mutex mutex_;  // guards devices_
  std::vector<Device> devices_;
};

}  // namespace uvm
