// Lets several programs share a device (UVMALLOC_SHARE; docs/reference/planning.md,
// "Several programs"). A thread publishes four times a second how much device memory this program
// holds. If the programs together hold more than the device has, this program releases its cached
// memory. If that memory is not enough, this program plans moves: from then on its kernels wait for
// its turn.
//
// Thread-safe. Without shared devices there is no thread and no file, and no call waits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hints/sharing/shared_turns.hpp"
#include "hints/watch_thread.hpp"

namespace uvm::sharing {

struct SharedDevice {
  std::string name;  // the same in every program of the machine; empty: the device is not shared
  std::size_t room_bytes = 0;
};

class DeviceSharing {
 public:
  struct Actions {
    std::function<std::size_t(int device)> held_bytes;
    std::function<void()> release_cached;
    std::function<void(int device)> plan_moves;
  };

  // Joins the programs of each device through a table in `folder`, or in turn_folder() if `folder`
  // is empty. `devices` has an entry for each device, or is empty. Logs a line for each device that
  // cannot be shared.
  DeviceSharing(const std::vector<SharedDevice>& devices, std::string folder);
  ~DeviceSharing();
  DeviceSharing(const DeviceSharing&) = delete;
  DeviceSharing& operator=(const DeviceSharing&) = delete;

  void start(Actions actions);
  void stop() noexcept;
  // Does once what the thread does four times a second. Called only if there is no thread.
  void look();
  // Publishes at once how much memory this program holds, because much of it was evicted.
  void publish(int device) const;
  // Called in a forked child: the thread and the turns belong to the parent.
  void abandon() noexcept;

  // Called before a kernel, without locks. Waits until this program may use the device.
  // `leave(device)` moves the program's memory off the device.
  template <class Leave>
  void before_kernel(int device, Leave leave) {
    if (const Shared* shared = find(device)) [[unlikely]]
      shared->turns->before_kernel([&] { leave(device); });
  }
  bool is_crowded(int device) const {
    const Shared* shared = find(device);
    return shared != nullptr && shared->turns->is_crowded();
  }
  // Returns one entry for each device. The entry of a device that is not shared has 0 programs.
  std::vector<SharingFigures> figures() const;

 private:
  struct Shared {
    std::unique_ptr<SharedTurns> turns;  // nullptr: the device is not shared
    std::size_t room_bytes = 0;
    // True if the programs still held more than the device has after this program had released its
    // cache.
    bool is_crowded = false;
    bool is_logged = false;  // a line was logged, for this crowd or an earlier one
  };

  const Shared* find(int device) const {
    const auto index = static_cast<std::size_t>(device);
    return index < by_device_.size() && by_device_[index].turns != nullptr ? &by_device_[index]
                                                                           : nullptr;
  }
  void look_at(int device, Shared& shared);
  std::size_t publish(int device, SharedTurns& turns) const;
  static void log_crowd(int device, const Shared& shared);

  Actions actions_;
  std::vector<Shared> by_device_;
  std::unique_ptr<WatchThread> watch_;  // nullptr: no thread runs
};

}  // namespace uvm::sharing
