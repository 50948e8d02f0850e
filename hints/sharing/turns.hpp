// Which of several programs may use a device that has no room for all of them at once. Each says
// how much of the device's memory it holds. While the sum fits, all of them run. Otherwise one
// program at a time has the device, for a turn that is long against the time in which one program's
// memory leaves and another's comes.
//
// A turn ends when the program gives it up, or when it launched no kernel for `idle_ns` and another
// program takes it. So a program that sleeps, is stopped or waits for another one delays others for
// a bounded time, whether it has the turn or waits for it. A program that is gone is removed by the
// caller, who can tell.
//
// The table is in memory that the programs share. Every member is one word, and every combination
// of them is valid, so that a program may die at any point. A program that writes false words can
// keep the turn from others: the caller bounds its wait, and then seizes the turn. Functions marked
// "locked" need the table's lock; others are safe at any time. Time is an argument, on one clock
// for all programs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace uvm::sharing {

inline constexpr std::size_t kMostPrograms = 32;

// All zeros is a table without programs.
struct TurnTable {
  struct Program {
    std::atomic<std::uint64_t> is_here;
    std::atomic<std::uint64_t> held_bytes;
    std::atomic<std::uint64_t> waits_since_ns;  // 0: it does not wait
    std::atomic<std::uint64_t> turns;           // that have begun, since it joined
  };
  std::atomic<std::uint32_t> changes;  // a futex: programs wait for the next one
  std::array<Program, kMostPrograms> programs;
  std::atomic<std::uint64_t> holder;  // its number and 1; 0: nobody has the turn
  std::atomic<std::uint64_t> turn_began_ns;
  std::atomic<std::uint64_t> last_kernel_ns;  // of the holder
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct TurnRules {
  std::uint64_t device_bytes = 0;  // that programs can hold
  std::uint64_t turn_ns = 0;
  std::uint64_t idle_ns = 0;
  // Of every program: a budget of their own gives others other turns.
  std::uint64_t longest_turn_ns = 60'000'000'000;

  // How long a wait for a turn can last among so many programs that keep the rules: each has one
  // turn, is idle before it yields, and is idle again while its memory leaves.
  std::uint64_t longest_wait_ns(std::size_t programs) const;

  // A turn is twenty times as long as a change of programs, so that changes take 5 % of the time.
  // Waiting for an idle program never costs more than the change that it saves.
  static TurnRules for_device(std::size_t device_bytes);
};

enum class Answer : std::uint8_t {
  kRuns,
  kYields,  // the turn is over and others wait: memory leaves the device, then yield()
  kWaits,   // another program has the turn
};

class Turns {
 public:
  Turns(TurnTable& table, const TurnRules& rules) : table_(table), rules_(rules) {}

  // The program's number. nullopt: the table is full. Locked.
  std::optional<std::size_t> join();
  // Of this program, or of one that is gone. Locked.
  void leave(std::size_t program);

  void set_held_bytes(std::size_t program, std::uint64_t bytes);
  // Whether the programs hold more than the device has.
  bool is_crowded() const;

  // Before a kernel.
  Answer before_kernel(std::size_t program, std::uint64_t now_ns);
  // Whether the program may run: all fits, or it has the turn. Otherwise it waits from now on. A
  // turn that is free, or that its holder makes no use of, passes to the program that has waited
  // longest. That program may be stopped: then it is the idle holder. Locked.
  bool take(std::size_t program, std::uint64_t now_ns);
  // Passes the turn to the program that has waited longest. Locked.
  void yield(std::size_t program, std::uint64_t now_ns);
  // Takes the turn, whatever the table says. Locked.
  void seize(std::size_t program, std::uint64_t now_ns) { begin_turn(program, now_ns); }

  template <class Visit>
  void each_program(Visit visit) const {
    for (std::size_t program = 0; program < kMostPrograms; ++program) {
      if (table_.programs[program].is_here.load(std::memory_order_acquire) != 0) visit(program);
    }
  }

 private:
  // Of the programs that wait; nullopt: none does.
  std::optional<std::size_t> longest_waiting() const;
  bool is_free(std::uint64_t now_ns) const;
  void begin_turn(std::size_t program, std::uint64_t now_ns);

  TurnTable& table_;
  TurnRules rules_;
};

}  // namespace uvm::sharing
