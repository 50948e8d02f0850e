#include "runtime/ranked.hpp"

#ifndef NDEBUG
#include <cstdlib>

#include "runtime/log.hpp"

namespace uvm::detail {
namespace {

const char* name(LockRank rank) {
  switch (rank) {
    case LockRank::kNone:
      return "none";
    case LockRank::kPlan:
      return "live plan";
    case LockRank::kRelease:
      return "release";
    case LockRank::kFences:
      return "fences";
    case LockRank::kPendingHints:
      return "pending hints";
    case LockRank::kCaptures:
      return "captures";
    case LockRank::kArena:
      return "arena";
    case LockRank::kCaches:
      return "thread caches";
    case LockRank::kState:
      return "state";
    case LockRank::kEvents:
      return "events";
    case LockRank::kLanes:
      return "hint lanes";
    case LockRank::kTrace:
      return "trace";
    case LockRank::kThreadEnds:
      return "ends of threads";
  }
  return "unknown";
}

unsigned bit(LockRank rank) {
  return 1u << static_cast<unsigned>(rank);
}

}  // namespace

void enter_rank(LockRank rank) {
  if (unsigned not_below = held_ranks & ~(bit(rank) - 1); not_below != 0) {
    unsigned held = 31u - static_cast<unsigned>(__builtin_clz(not_below));
    forget_ranks();
    log_line(
        LogLevel::kError,
        fmt::format("the lock '{}' is taken while '{}' is held: they are ordered the other way",
                    name(rank), name(static_cast<LockRank>(held))));
    std::abort();
  }
  held_ranks |= bit(rank);
}

void leave_rank(LockRank rank) {
  held_ranks &= ~bit(rank);
}

}  // namespace uvm::detail
#endif
