#include "runtime/ranked.hpp"

#ifndef NDEBUG
#include <cstdlib>

#include "runtime/log.hpp"

namespace uvm::detail {
namespace {

const char* name(LockRank rank) {
  static constexpr const char* kNames[] = {
#define UVM_LOCK_RANK(constant, name) name,
#include "runtime/lock_ranks.def"
  };
  return kNames[static_cast<std::size_t>(rank)];
}

unsigned bit(LockRank rank) {
  return 1u << static_cast<unsigned>(rank);
}

}  // namespace

void enter_rank(LockRank rank) {
  if (unsigned not_below = held_ranks & ~(bit(rank) - 1); not_below != 0) {
    unsigned held = 31u - static_cast<unsigned>(__builtin_clz(not_below));
    forget_ranks();
    log_line(LogLevel::kError,
             fmt::format("lock '{0}' is taken while '{1}' is held, but '{0}' has to be taken first",
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
