// Moves many pages of a device at once, at the full rate of the link in both directions. Pages that
// leave and pages that come have streams of their own. A piece that comes waits only for so many
// pieces that leave as it needs their room, so a swap of two sets of pages takes little longer than
// the larger set alone.
//
// Thread-safe: a mutex is held across driver calls, and no lock of the allocator but the
// trace's is taken meanwhile. In a forked child nothing may be called but the destructor.
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

  // Sends the pages to the host after the work of `stream` so far. Returns false if the driver
  // refused a part; a page that it did not move stays where it was.
  bool leave(const PageSpan& pages, const DeviceStream& stream);
  // Sends the pages to the device of `stream`, whose later work waits for them. `room_bytes`: that
  // the device has free once all pages that leave are gone.
  // Without `waits`, the stream does not wait: wait_for() makes it wait for some of the pages.
  bool come(const PageSpan& pages, std::size_t room_bytes, const DeviceStream& stream,
            bool waits = true);
  // Makes later work of the stream wait for those of the pages that still come. Returns whether any
  // pages come for which nothing waits yet.
  bool wait_for(const PageSpan& pages, const DeviceStream& stream);

  // Forgets the streams of a device whose context was destroyed, which destroyed them too.
  void forget_device(int device) noexcept;

 private:
  static constexpr std::size_t kLanes = 2;  // each way: the driver prepares one piece meanwhile
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
    std::size_t pieces = 0;       // sent so far: two pieces in turn take two lanes
    std::deque<Leaving> leaving;  // the first one leaves first
    std::size_t leaving_pages = 0;
    std::deque<Coming> coming;  // pages for which no stream waits by itself
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
  std::mutex mutex_;  // guards the member below
  std::vector<Device> devices_;
};

}  // namespace uvm
