// Sees the host's own loads and stores to an arena, in system calls too: userfaultfd reports a
// touch of a page that the host does not reach, before the touch goes on. A thread answers the
// faults. It uses the device view alone, takes no signals and prints nothing while it answers.
//
// unmap() may be called with the machine's mutex held; the handler is called without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace uvmsim {

class HostTouches {
 public:
  struct Range {
    std::uintptr_t address = 0;
    std::size_t size_bytes = 0;
  };
  // The range, whole pages with that address among them, that the host reaches from now on.
  using Handler = std::function<Range(std::uintptr_t address, bool write)>;
  // What of the arena a device sees at an address.
  using DeviceView = std::function<std::byte*(std::uintptr_t address)>;

  // Null where the kernel refuses; a line on stderr says so.
  static std::unique_ptr<HostTouches> start(Range arena, DeviceView device_view, Handler handler);
  HostTouches(const HostTouches&) = delete;
  HostTouches& operator=(const HostTouches&) = delete;

  // The next touch of the range is a fault. The contents stay.
  static void unmap(Range range);

  // In a forked child: an inherited descriptor would keep the parent's ranges armed.
  void abandon() const;

 private:
  HostTouches(int descriptor, DeviceView device_view, Handler handler)
      : descriptor_(descriptor),
        device_view_(std::move(device_view)),
        handler_(std::move(handler)) {}

  void serve() const;
  void map(Range range) const;

  const int descriptor_;
  const DeviceView device_view_;
  const Handler handler_;
};

}  // namespace uvmsim
