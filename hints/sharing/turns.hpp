// Decides which of several programs may use a device that has no room for all of them at once (Note
// "Turns on a shared device"). Each program publishes how much of the device's memory it holds.
// While the sum fits, all programs run. Otherwise one program at a time uses the device, for a
// turn. A turn is long compared with a change of programs, in which the memory of one program is
// moved off the device and the memory of the next is moved in.
//
// A turn ends when its program yields, or when its program has launched no kernel for `idle_ns` and
// another program takes the turn. So a program that sleeps, is stopped or waits for another program
// delays others only for a bounded time. The caller detects programs that have ended, and removes
// them.
//
// The table is in memory that the programs share. Every member is one word, and every combination
// of words is valid, so that a program may die at any point. A program that writes false values can
// keep the turn from others, so the caller bounds its wait and then seizes the turn. Functions
// marked "Locked" need the table's lock; other functions are safe at any time. Callers pass the
// time; all programs use the same clock.
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
    std::atomic<std::uint64_t> waits_since_ns;  // 0: the program does not wait
    std::atomic<std::uint64_t> turns;           // turns begun since the program joined
  };
  std::atomic<std::uint32_t> changes;  // a futex: programs wait for the next change
  std::array<Program, kMostPrograms> programs;
  std::atomic<std::uint64_t> holder;  // the program's number plus 1; 0: no program has the turn
  std::atomic<std::uint64_t> turn_began_ns;
  std::atomic<std::uint64_t> last_kernel_ns;  // the time of the holder's last kernel
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct TurnRules {
  std::uint64_t device_bytes = 0;  // device memory that all programs together can hold
  std::uint64_t turn_ns = 0;
  std::uint64_t idle_ns = 0;
  // Limits the turns of all programs; turn_ns differs between programs with different budgets.
  std::uint64_t longest_turn_ns = 60'000'000'000;

  // The longest wait for a turn if all `programs` keep the rules: each has one turn, is idle before
  // the next program takes the turn, and is idle again while its memory is moved off the device.
  std::uint64_t longest_wait_ns(std::size_t programs) const;

  // A turn is twenty times as long as a change of programs, so that changes take 5 % of the time.
  // Waiting for an idle program takes no longer than the change of programs that the wait may save.
  static TurnRules for_device(std::size_t device_bytes);
};

enum class Answer : std::uint8_t {
  kRuns,
  kYields,  // the turn is over and others wait: move memory off the device, then call yield()
  kWaits,   // another program has the turn
};

class Turns {
 public:
  Turns(TurnTable& table, const TurnRules& rules) : table_(table), rules_(rules) {}

  // Returns the program's number, or nullopt if the table is full. Locked.
  std::optional<std::size_t> join();
  // Removes the caller's program, or one that has ended. Locked.
  void leave(std::size_t program);

  void set_held_bytes(std::size_t program, std::uint64_t bytes);
  // Returns whether the programs together hold more memory than the device has.
  bool is_crowded() const;

  Answer before_kernel(std::size_t program, std::uint64_t now_ns);
  // Returns whether the program may run, because all programs fit or it has the turn. Otherwise the
  // program counts as waiting from now on. If the turn is free or its holder is idle, the longest
  // waiting program gets the turn. If that program is stopped, it becomes the idle holder. Locked.
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
  // Returns the program that has waited longest, or nullopt if no program waits.
  std::optional<std::size_t> longest_waiting() const;
  bool is_free(std::uint64_t now_ns) const;
  void begin_turn(std::size_t program, std::uint64_t now_ns);

  TurnTable& table_;
  TurnRules rules_;
};

}  // namespace uvm::sharing
