// Detects the host's own loads and stores to an arena, also in system calls. userfaultfd reports a
// touch of an unmapped page, and blocks the touching thread until a thread of this class has served
// the fault. That thread uses only the device view, takes no signals, and does not print while it
// serves a fault.
//
// unmap() may be called with the machine's mutex held; the handler is called without that mutex.
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
  // Returns the range of whole pages around the address that the host may access from now on.
  using Handler = std::function<Range(std::uintptr_t address, bool write)>;
  // Returns the address of the same bytes in the device view.
  using DeviceView = std::function<std::byte*(std::uintptr_t address)>;

  // Returns null, after a line on stderr, if the kernel refuses.
  static std::unique_ptr<HostTouches> start(Range arena, DeviceView device_view, Handler handler);
  HostTouches(const HostTouches&) = delete;
  HostTouches& operator=(const HostTouches&) = delete;

  // Makes the next touch of the range fault. The contents do not change.
  static void unmap(Range range);

  // Call this in a forked child, because an inherited descriptor would keep the parent's ranges
  // registered.
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
