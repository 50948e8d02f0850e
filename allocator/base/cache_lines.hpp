// Data of different threads is at least this far apart, because processors fetch lines in pairs.
#pragma once

#include <cstddef>

namespace uvm {

inline constexpr std::size_t kCacheLinePair = 128;

}  // namespace uvm
