// Fibonacci hashing: the slot is the upper bits of the value times 2^64 over the golden ratio.
// Values at regular distances, such as sizes and addresses, get slots far apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm {

inline constexpr std::uint64_t kFibonacci = 0x9E3779B97F4A7C15ull;

template <unsigned kBits>
constexpr std::size_t fibonacci_slot(std::uint64_t value) {
  return (value * kFibonacci) >> (64 - kBits);
}

}  // namespace uvm
