// What different threads write to lies this far apart: processors fetch lines of the cache in
// pairs.
#pragma once

#include <cstddef>

namespace uvm {

inline constexpr std::size_t kCacheLinePair = 128;

}  // namespace uvm
