// Takes turns with the other programs that share a device (turns.hpp). The table of the programs is
// a mapped file, one for each user and device. Programs of other users and of other containers do
// not share it.
//
// Each program holds a lock of the file. The kernel drops that lock when the program ends for any
// reason. Other programs then remove the program from the table. A second lock guards changes of
// the table. A program that cannot get the second lock within a second runs without turns, for as
// long as a turn can last. It also runs without turns if it has waited longer than the turns of all
// other programs can last, because then some program writes false values into the table. Programs
// may be slow without turns, but they never hang.
//
// Thread-safe. In a forked child only the destructor may be called.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "hints/sharing/sharing_clock.hpp"
#include "hints/sharing/turns.hpp"

namespace uvm::sharing {

struct SharingFigures {
  std::size_t programs = 0;      // programs in the table, this program included
  std::uint64_t held_bytes = 0;  // memory held by all programs together
  std::uint64_t turns = 0;       // turns of this program
  std::uint64_t waited_ns = 0;   // waited by the threads of this program
};

class SharedTurns {
 public:
  // `name` identifies the device. Returns nullptr, and one clause in `*why`, if the file cannot be
  // used, the table is full, or this process has joined already. `clock` has to outlive the object.
  static std::unique_ptr<SharedTurns> join(const std::string& folder, const std::string& name,
                                           const TurnRules& rules, std::string* why,
                                           const SharingClock& clock = SharingClock::of_machine());
  ~SharedTurns();
  SharedTurns(const SharedTurns&) = delete;
  SharedTurns& operator=(const SharedTurns&) = delete;

  void set_held_bytes(std::uint64_t bytes) { turns_.set_held_bytes(program_, bytes); }
  bool is_crowded() const { return turns_.is_crowded(); }
  void remove_gone_programs();

  // Called before a kernel: returns when this program may use the device. If the program has to
  // wait or its turn is over, calls `leave` first, which moves the program's memory off the device
  // and waits for the program's work there.
  void before_kernel(const std::function<void()>& leave);

  SharingFigures figures() const;

 private:
  class TableLock;

  SharedTurns(std::string path, int descriptor, TurnTable* table, const TurnRules& rules,
              const SharingClock& clock);

  bool enter(std::string* why);
  void wait_for_turn();
  // Returns whether this program may run now. Takes both locks.
  bool ask_for_turn(std::uint64_t began_ns);
  bool is_without_turns(std::uint64_t now_ns) const;
  void go_without_turns(std::uint64_t now_ns);
  void remove_gone_with_lock();
  bool is_gone(std::size_t program) const;
  void announce_change();
  void await_change(std::uint32_t seen) const;

  const std::string path_;
  const int descriptor_;
  TurnTable* const table_;
  const TurnRules rules_;
  const SharingClock& clock_;
  Turns turns_;
  const pid_t process_;
  std::size_t program_ = kMostPrograms;
  std::mutex mutex_;  // excludes threads of this process, which share the file's locks
  std::atomic<std::uint64_t> waited_ns_{0};
  std::atomic<std::uint64_t> without_turns_until_ns_{0};  // known to this program only
};

}  // namespace uvm::sharing
