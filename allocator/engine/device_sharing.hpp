// Several programs on one device (UVMALLOC_SHARE; docs/oversubscription.md, "Several programs"). A
// thread tells the others four times a second how much device memory this program holds. When all
// together hold more than there is, it first gives back cached memory. If that is not enough, it
// has moves planned: from then on kernels wait for the program's turn.
//
// Thread-safe. Without the setting there is no thread and no file, and nothing waits.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <uvmalloc/allocator/engine/heap_state.hpp>
#include <uvmalloc/hints/arbiter/shared_turns.hpp>

namespace uvm {

class DeviceSharing {
 public:
  struct Actions {
    std::function<void()> release_cached;
    std::function<void(int device)> plan_moves;
  };

  // Joins the programs of each device. A device that cannot be shared has one line in the log.
  DeviceSharing(Machine& machine, HeapState& state);
  ~DeviceSharing();
  DeviceSharing(const DeviceSharing&) = delete;
  DeviceSharing& operator=(const DeviceSharing&) = delete;

  void start(Actions actions);
  void stop() noexcept;
  // In a forked child: the thread and the turns are the parent's.
  void abandon() noexcept;

  // Before a kernel, without locks: waits until this program may use the device.
  // `leave(device)` moves its memory away.
  template <class Leave>
  void before_kernel(int device, Leave leave) {
    if (arbiter::SharedTurns* turns = turns_of(device)) [[unlikely]]
      turns->before_kernel([&] { leave(device); });
  }
  bool is_crowded(int device) const {
    const arbiter::SharedTurns* turns = turns_of(device);
    return turns != nullptr && turns->is_crowded();
  }
  // By device; no programs: it is not shared.
  std::vector<arbiter::SharingFigures> figures() const;

 private:
  arbiter::SharedTurns* turns_of(int device) const {
    const auto index = static_cast<std::size_t>(device);
    return index < turns_.size() ? turns_[index].get() : nullptr;
  }
  std::unique_ptr<arbiter::SharedTurns> join(int device, std::string* why) const;
  std::size_t room_bytes(int device) const;
  void watch();
  void look_at(int device, arbiter::SharedTurns& turns);
  std::size_t publish(int device, arbiter::SharedTurns& turns) const;
  void tell(int device, const arbiter::SharedTurns& turns) const;

  Machine& machine_;
  HeapState& state_;
  Actions actions_;
  std::vector<std::unique_ptr<arbiter::SharedTurns>> turns_;  // by device; null: not shared
  // Programs that hold more of a device than there is, though they keep nothing cached.
  struct Crowd {
    bool is_there = false;
    bool is_told = false;  // the log has a line, of this or an earlier crowd
  };
  std::vector<Crowd> crowds_;  // by device
  struct Watch {
    std::mutex mutex;
    std::condition_variable changed;
    bool stops = false;
    std::thread thread;
  };
  std::unique_ptr<Watch> watch_;  // null: nothing is shared
};

}  // namespace uvm
