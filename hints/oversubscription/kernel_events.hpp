// Events on the streams of a program, so that a page can be evicted right after the kernel that
// used it last. An event that was recorded before a kernel shows that all earlier kernels of the
// event's stream have finished.
//
// Not thread-safe, like MoveLanes. Calls no driver.
#pragma once

#include <cstddef>
#include <deque>

#include <uvmalloc/device_runtime.hpp>
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class KernelEvents {
 public:
  struct Recorded {
    KernelNumber before = 0;
    DeviceStream stream;
    EventHandle event = nullptr;
  };

  // Adds an event that was recorded on the stream before `kernel`. `kernel` must not be below that
  // of the previous event. Returns an event that is no longer needed, or null.
  EventHandle add(KernelNumber kernel, const DeviceStream& stream, EventHandle event);
  // Returns the earliest event after the kernel on the kernel's stream; null if there is no such
  // event yet, or if the program uses several streams and the kernel's stream is unknown.
  const Recorded* first_after(KernelNumber kernel) const;
  EventHandle after(KernelNumber kernel) const {
    const Recorded* found = first_after(kernel);
    return found == nullptr ? nullptr : found->event;
  }
  // Returns the earliest event after the kernel on that stream; null if there is no such event yet.
  const Recorded* first_after(KernelNumber kernel, const DeviceStream& stream) const;

  bool empty() const { return events_.empty(); }
  EventHandle take();
  void clear() { events_.clear(); }

 private:
  std::deque<Recorded> events_;
};

}  // namespace uvm::live
