// Events on the streams of a program, so that a page can leave right after the kernel that used it
// last. An event that was recorded before a kernel stands for the kernels before it on its stream.
//
// Not thread-safe, as MoveLanes. Knows no driver.
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

  // Recorded on the stream before that kernel, which is not below that of the event before. Returns
  // an event that is not needed any more, or null.
  EventHandle add(KernelNumber kernel, const DeviceStream& stream, EventHandle event);
  // The earliest event after the kernel on its stream; null: there is none yet, or the streams are
  // many.
  const Recorded* first_after(KernelNumber kernel) const;
  EventHandle after(KernelNumber kernel) const {
    const Recorded* found = first_after(kernel);
    return found == nullptr ? nullptr : found->event;
  }
  // The earliest event after the kernel on that stream; null: there is none yet.
  const Recorded* first_after(KernelNumber kernel, const DeviceStream& stream) const;

  bool empty() const { return events_.empty(); }
  EventHandle take();
  void clear() { events_.clear(); }

 private:
  std::deque<Recorded> events_;
};

}  // namespace uvm::live
