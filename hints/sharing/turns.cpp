#include "hints/sharing/turns.hpp"

#include <algorithm>

#include "hints/policy.hpp"

namespace uvm::sharing {
namespace {

static_assert(TurnRules{}.longest_turn_ns == policy::kChangesPerTurn * policy::kMostChangeNs);

constexpr auto kOrder = std::memory_order_seq_cst;

std::uint64_t since(std::uint64_t now_ns, std::uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

}  // namespace

TurnRules TurnRules::for_device(std::size_t device_bytes) {
  const double copy_ns = static_cast<double>(device_bytes) / policy::kTurnLinkBytesPerNs;
  const std::uint64_t change_ns = std::clamp(static_cast<std::uint64_t>(copy_ns),
                                             policy::kLeastChangeNs, policy::kMostChangeNs);
  return {.device_bytes = device_bytes,
          .turn_ns = policy::kChangesPerTurn * change_ns,
          .idle_ns = change_ns};
}

std::uint64_t TurnRules::longest_wait_ns(std::size_t programs) const {
  const std::uint64_t longest_idle_ns =
      std::max(idle_ns, longest_turn_ns / policy::kChangesPerTurn);
  return programs * (longest_turn_ns + 2 * longest_idle_ns);
}

std::optional<std::size_t> Turns::join() {
  for (std::size_t program = 0; program < kMostPrograms; ++program) {
    TurnTable::Program& slot = table_.programs[program];
    if (slot.is_here.load(kOrder) != 0) continue;
    slot.held_bytes.store(0, kOrder);
    slot.waits_since_ns.store(0, kOrder);
    slot.turns.store(0, kOrder);
    slot.is_here.store(1, kOrder);
    return program;
  }
  return std::nullopt;
}

void Turns::leave(std::size_t program) {
  TurnTable::Program& slot = table_.programs[program];
  slot.is_here.store(0, kOrder);
  slot.held_bytes.store(0, kOrder);
  slot.waits_since_ns.store(0, kOrder);
  std::uint64_t holder = program + 1;
  table_.holder.compare_exchange_strong(holder, 0, kOrder);
}

void Turns::set_held_bytes(std::size_t program, std::uint64_t bytes) {
  table_.programs[program].held_bytes.store(bytes, kOrder);
}

bool Turns::is_crowded() const {
  std::uint64_t sum = 0;
  std::size_t programs = 0;
  each_program([&](std::size_t program) {
    sum += table_.programs[program].held_bytes.load(std::memory_order_relaxed);
    ++programs;
  });
  return programs > 1 && sum > rules_.device_bytes;
}

Answer Turns::before_kernel(std::size_t program, std::uint64_t now_ns) {
  if (!is_crowded()) return Answer::kRuns;
  if (table_.holder.load(std::memory_order_acquire) != program + 1) return Answer::kWaits;
  table_.last_kernel_ns.store(now_ns, std::memory_order_relaxed);
  const std::uint64_t began_ns = table_.turn_began_ns.load(std::memory_order_relaxed);
  if (since(now_ns, began_ns) < rules_.turn_ns) return Answer::kRuns;
  return longest_waiting() ? Answer::kYields : Answer::kRuns;
}

bool Turns::take(std::size_t program, std::uint64_t now_ns) {
  TurnTable::Program& slot = table_.programs[program];
  if (!is_crowded() || table_.holder.load(kOrder) == program + 1) {
    slot.waits_since_ns.store(0, kOrder);
    return true;
  }
  if (slot.waits_since_ns.load(kOrder) == 0)
    slot.waits_since_ns.store(std::max<std::uint64_t>(now_ns, 1), kOrder);
  if (is_free(now_ns)) begin_turn(longest_waiting().value_or(program), now_ns);
  return table_.holder.load(kOrder) == program + 1;
}

void Turns::yield(std::size_t program, std::uint64_t now_ns) {
  if (table_.holder.load(kOrder) != program + 1) return;
  table_.holder.store(0, kOrder);
  if (const auto next = longest_waiting()) begin_turn(*next, now_ns);
}

std::optional<std::size_t> Turns::longest_waiting() const {
  std::optional<std::size_t> found;
  std::uint64_t since_ns = 0;
  each_program([&](std::size_t program) {
    const std::uint64_t each_ns =
        table_.programs[program].waits_since_ns.load(std::memory_order_relaxed);
    if (each_ns == 0 || (found && each_ns >= since_ns)) return;
    found = program;
    since_ns = each_ns;
  });
  return found;
}

bool Turns::is_free(std::uint64_t now_ns) const {
  return table_.holder.load(kOrder) == 0 ||
         since(now_ns, table_.last_kernel_ns.load(kOrder)) > rules_.idle_ns;
}

void Turns::begin_turn(std::size_t program, std::uint64_t now_ns) {
  table_.programs[program].waits_since_ns.store(0, kOrder);
  table_.turn_began_ns.store(now_ns, kOrder);
  table_.last_kernel_ns.store(now_ns, kOrder);
  table_.programs[program].turns.fetch_add(1, kOrder);
  table_.holder.store(program + 1, kOrder);
}

}  // namespace uvm::sharing
