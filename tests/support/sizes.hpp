// Sizes for tests.
#pragma once

#include <cstddef>

namespace uvm {
namespace testing {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

}  // namespace testing

using testing::kGiB;
using testing::kKiB;
using testing::kMiB;

}  // namespace uvm
