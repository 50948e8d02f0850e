// Flow control by credits (the notes on OneFlow, 4.1 to 4.3). Actors hand tensors to each other in
// the slots of registers. A register is the output of one actor, its producer. The register's quota
// is the number of its slots. An action starts only if each input holds a tensor and each output
// has a credit, which is a free slot. So memory is a dependency that is known before the start, and
// an action that has started never waits for memory.
//
// The counters are those of the notes:
//   in tensors of an input register that a consumer may read; 0 at first out free slots of an
//   output register; its quota at first reference consumers that still read a slot; the slot's
//   contents do not change until the count is 0
// Messages change the counters. finish() sends a request to each consumer and an acknowledgement to
// each producer; deliver() delivers one message. Consumers read the slot itself, without a copy.
//
// Quotas limit the memory of each register. `memory_bytes` also limits the sum over all registers,
// and may be less than the sum of the quotas. An action starts only if, after it, the tensors in
// flight can still be consumed within that memory in some order. This prevents the deadlock of the
// notes (2.3), in which the inputs of two operators fill the memory that one of them needs.
//
// Not thread-safe, unlike CreditGate. Callers pass the time. No function calls an actor.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "pipelines/credits/credit_trial.hpp"

namespace uvm {

// The memory of one tensor: slot `index` of register `reg`.
struct CreditSlot {
  std::size_t reg = 0;
  std::size_t index = 0;
  friend bool operator==(const CreditSlot&, const CreditSlot&) = default;
};

// The slots that one action reads and writes, in the order in which the actor's registers were
// added.
struct CreditAction {
  std::vector<CreditSlot> inputs;
  std::vector<CreditSlot> outputs;
  friend bool operator==(const CreditAction&, const CreditAction&) = default;
};

struct CreditRegister {
  std::string name;
  std::size_t producer = 0;
  std::vector<std::size_t> consumers;  // empty: memory that an action needs only while it runs
  std::size_t quota = 1;               // 2 is double buffering
  std::size_t slot_bytes = 0;          // most bytes of a tensor in a slot
};

class Credits {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  explicit Credits(std::size_t memory_bytes = kUnlimited) : memory_bytes_(memory_bytes) {}
  Credits(Credits&&) = default;  // move-only: all threads must use one object
  Credits& operator=(Credits&&) = default;

  // Both return the number of the new actor or register. An actor without input registers is a
  // source. Throws std::invalid_argument for a register with an unknown actor, a consumer that is
  // named twice, a quota of 0, or consumers that make a cycle of actors.
  std::size_t add_actor(std::string name);
  std::size_t add_register(CreditRegister description);

  // Call before the first start(). Throws std::invalid_argument if memory_bytes is too small for
  // even one tensor to pass through all actors. The error names the actor that could never start.
  void check_memory() const;

  // Returns whether start() would start an action. An actor runs one action at a time.
  bool can_start(std::size_t actor) const;
  // Takes the oldest tensor of each input and a free slot of each output. Throws std::logic_error
  // if can_start() is false.
  CreditAction start(std::size_t actor, Time now);
  // Records that the running action has written `size_bytes` to its slot of register `reg`, and
  // releases the rest of slot_bytes. If `size_bytes` exceeds slot_bytes, throws std::length_error,
  // which names the register and both sizes.
  void set_output_bytes(std::size_t reg, std::size_t size_bytes);
  // Ends the running action: tells consumers that its outputs are ready, acknowledges its inputs.
  void finish(std::size_t actor, Time now);
  // Delivers the oldest message. Returns false if there is no message.
  bool deliver(Time now);
  void deliver_all(Time now) {
    while (deliver(now)) continue;
  }

  // Closes an actor: it starts no more actions. Its consumers end after its last tensor, and its
  // producers when all their consumers have ended. Acknowledges tensors that nobody will read.
  void close(std::size_t actor, Time now);
  // Closes an actor and discards the result of its running action, if there is one: for example at
  // the end of a source, or after a failure. Frees the action's output slots and acknowledges its
  // inputs.
  void abandon(std::size_t actor, Time now);
  // Returns whether the actor runs no action and will never start one again.
  bool is_over(std::size_t actor) const;

  // Returns a sentence that names the actor and the register, if a consumer has not acknowledged a
  // readable tensor, or a source has been making a tensor, for longer than `limit`.
  std::optional<std::string> overdue(Time now, Time limit) const;
  // Returns the earliest time at which overdue() can return a sentence; nullopt: no actor must act.
  std::optional<Time> next_overdue(Time limit) const;

  // ---- the counters
  std::size_t in_counter(std::size_t reg, std::size_t consumer) const;
  std::size_t out_counter(std::size_t reg) const { return registers_[reg].free.size(); }
  std::size_t reference_counter(CreditSlot slot) const {
    return registers_[slot.reg].slots[slot.index].references;
  }
  std::size_t held_bytes() const { return held_bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  friend class CreditTrial;
  struct Slot {
    std::size_t references = 0;
    std::size_t bytes = 0;  // charged for the slot's tensor
  };
  struct Register {
    CreditRegister described;
    std::vector<Slot> slots;
    std::deque<std::size_t> free;
    std::vector<std::deque<std::size_t>>
        ready;  // by consumer: slots that may be read, the oldest first
  };
  struct Input {
    std::size_t reg;
    std::size_t consumer;  // index among the register's consumers
  };
  struct Actor {
    std::string name;
    std::vector<Input> inputs;
    std::vector<std::size_t> outputs;
    std::optional<CreditAction> running;
    bool closed = false;
    std::optional<Time> since;  // when the actor became able to act, or began an action
  };
  struct Message {
    bool is_request;  // else an acknowledgement
    CreditSlot slot;
    std::size_t consumer;  // of a request: index among the register's consumers
  };

  bool has_inputs(const Actor& actor) const;
  bool has_credits(const Actor& actor) const;
  bool reaches(std::size_t from, std::size_t to, std::vector<std::string>* path) const;
  void charge(Slot* slot, std::size_t size_bytes);
  void recycle(CreditSlot slot);
  void take_slots(Actor* actor);
  void end_action(Actor* actor);
  bool has_ended(std::size_t actor) const;
  bool must_act(const Actor& actor) const;  // if so, the actor can be overdue
  void settle(Time now);
  void check(std::size_t actor) const;

  std::size_t memory_bytes_;
  std::vector<Actor> actors_;
  std::vector<Register> registers_;
  std::deque<Message> messages_;
  std::size_t held_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  mutable CreditTrial trial_;  // a member, so that its vectors are reused
};

}  // namespace uvm
