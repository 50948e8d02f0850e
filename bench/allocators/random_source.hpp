// Random numbers that are the same with every standard library, in the distributions that the
// workloads need. The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014). Each sequence has its own source; threads do not share one.
#pragma once

#include <cmath>
#include <cstdint>

namespace uvm::bench {

class RandomSource {
 public:
  explicit RandomSource(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t mixed = (state_ += 0x9e3779b97f4a7c15u);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }
  // In [0, 1).
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // In [0, bound).
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>(fraction() * static_cast<double>(bound));
  }
  // Log-uniform in [least, most].
  std::uint64_t log_uniform(std::uint64_t least, std::uint64_t most) {
    const double octaves = std::log2(static_cast<double>(most) / static_cast<double>(least));
    return static_cast<std::uint64_t>(static_cast<double>(least) * std::exp2(octaves * fraction()));
  }

 private:
  std::uint64_t state_;
};

}  // namespace uvm::bench
