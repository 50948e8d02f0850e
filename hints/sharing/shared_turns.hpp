// This program among those that share a device (turns.hpp). The table is a file in memory, one for
// each user and device: programs of other users and of other containers do not meet here.
//
// A lock of the file marks each program that is there. The kernel drops it when the program ends,
// however it ends, and others then remove the program from the table. A second lock guards changes
// of the table. A program that cannot get it within a second goes on without turns, for as long as
// a turn can last. So does a program that has waited longer than all others' turns can last: one of
// them writes false words into the table. Both may be slow then, and they never hang.
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

#include "hints/sharing/turns.hpp"

namespace uvm::sharing {

struct SharingFigures {
  std::size_t programs = 0;      // that are there, with this one
  std::uint64_t held_bytes = 0;  // by all of them
  std::uint64_t turns = 0;       // of this program
  std::uint64_t waited_ns = 0;   // by threads of this program
};

class SharedTurns {
 public:
  // `name` names the device. nullptr, and one clause in `*why`: the file cannot be had, too many
  // programs are there, or this process has joined already.
  static std::unique_ptr<SharedTurns> join(const std::string& folder, const std::string& name,
                                           const TurnRules& rules, std::string* why);
  ~SharedTurns();
  SharedTurns(const SharedTurns&) = delete;
  SharedTurns& operator=(const SharedTurns&) = delete;

  void set_held_bytes(std::uint64_t bytes) { turns_.set_held_bytes(program_, bytes); }
  bool is_crowded() const { return turns_.is_crowded(); }
  void remove_gone_programs();

  // Before a kernel: returns when this program may use the device. If it may not, or its turn is
  // over, `leave` is called first: it moves the program's memory away and waits until the device
  // has done the program's work.
  void before_kernel(const std::function<void()>& leave);

  SharingFigures figures() const;

 private:
  class TableLock;

  SharedTurns(std::string path, int descriptor, TurnTable* table, const TurnRules& rules);

  bool enter(std::string* why);
  void wait_for_turn();
  // Whether this program may run now; with the threads' turn at the table.
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
  Turns turns_;
  const pid_t process_;
  std::size_t program_ = kMostPrograms;
  std::mutex mutex_;  // between threads of this process, which the file's lock does not part
  std::atomic<std::uint64_t> waited_ns_{0};
  std::atomic<std::uint64_t> without_turns_until_ns_{
      0};  // of this program alone: no other writes it
};

}  // namespace uvm::sharing
