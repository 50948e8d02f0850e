// The least distance between data of different threads: processors fetch cache lines in pairs.
#pragma once

#include <cstddef>

namespace uvm {

inline constexpr std::size_t kCacheLinePair = 128;

}  // namespace uvm
