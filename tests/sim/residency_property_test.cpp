// Blocks with all pages at one place take shorter code paths. The result must be the same as with
// every block cut in two, so that none is moved or freed whole, and touches go page by page.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/engine/residency.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kBlocks = 8;
constexpr int kDevices = 2;
constexpr std::size_t kChunks = 3;  // that fit in a device's memory

struct Step {
  enum class Kind { kTouch, kPrefetch, kCopy, kDiscard, kCollapse, kForget } kind;
  PageRange pages;
  int location;
  Policy policy;
  Access access;
};

class Arena {
 public:
  explicit Arena(bool skips_touches) : skips_touches_(skips_touches) {}

  void run(const Step& step) {
    switch (step.kind) {
      case Step::Kind::kTouch: {
        const int device = step.location < 0 ? 0 : step.location;
        // The machine skips such touches, too.
        if (skips_touches_ && residency_.is_whole_at(device, step.pages)) return;
        ASSERT_EQ(residency_.touch(device, step.pages, step.pages, step.policy, step.access),
                  Status::kOk);
        break;
      }
      case Step::Kind::kPrefetch:
        ASSERT_EQ(residency_.prefetch(step.location, step.pages, step.policy), Status::kOk);
        break;
      case Step::Kind::kCopy:
        ASSERT_EQ(residency_.copy_access(step.location, step.pages, step.access.write),
                  Status::kOk);
        break;
      case Step::Kind::kDiscard:
        residency_.discard(step.pages);
        break;
      case Step::Kind::kCollapse:
        residency_.collapse(step.pages);
        break;
      case Step::Kind::kForget:
        residency_.forget(step.pages);
        break;
    }
  }

  void run_by_halves(const Step& step) {
    constexpr std::size_t kHalf = kPagesPerBlock / 2;
    for (std::size_t page = step.pages.first; page < step.pages.last; page += kHalf) {
      Step half = step;
      half.pages = {page, page + kHalf};
      run(half);
    }
  }

  std::string state() {
    std::string text;
    for (std::size_t block = 0; block < kBlocks; ++block) {
      for (int location = kHost; location < kDevices; ++location) {
        text += std::to_string(
                    residency_.resident_pages(location, block * kPagesPerBlock, kPagesPerBlock)) +
                ' ';
      }
    }
    for (const DeviceMemory& memory : memories_)
      text += std::to_string(memory.managed_bytes()) + ' ';
    const PlacementWork work = residency_.take_work();
    return text + std::to_string(traffic_bytes_ += work.copied_bytes() + work.evicted_bytes);
  }

  const uvmsim_counters& counters() const { return counters_; }
  std::string broken_invariant() const { return residency_.broken_invariant(); }

 private:
  std::vector<DeviceMemory> memories_{{0, kChunks* kBlockBytes}, {1, kChunks* kBlockBytes}};
  bool skips_touches_;
  uvmsim_counters counters_{};
  std::uint64_t traffic_bytes_ = 0;
  HostMemory host_{kBlocks * kBlockBytes};
  Residency residency_{kBlocks,
                       memories_,
                       host_,
                       counters_,
                       [](int, int) { return true; },
                       [](std::size_t) { return PageMask{}; }};
};

class Steps {
 public:
  explicit Steps(std::uint32_t seed) : random_(seed) {}

  Step next() {
    const auto kind = static_cast<Step::Kind>(pick(5));
    const std::size_t first = pick(kBlocks - 1);
    // A write keeps one copy of each page once all are found; in pieces, it may evict other pages.
    const std::size_t most = kind == Step::Kind::kCopy ? 0 : kBlocks - 1 - first;
    const std::size_t last = first + 1 + pick(most);
    Policy policy;
    policy.read_mostly = pick(5) == 0;
    policy.preferred = pick(1) == 0 ? kNoLocation : location();
    policy.accessed_by = pick(3);
    return {kind,
            {first * kPagesPerBlock, last * kPagesPerBlock},
            location(),
            policy,
            {.read = true, .write = pick(1) == 0}};
  }

 private:
  std::size_t pick(std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(0, most)(random_);
  }
  int location() { return static_cast<int>(pick(kDevices)) - 1; }

  std::mt19937 random_;
};

TEST(ResidencyProperty, AWholeBlockIsNoOtherThanItsHalves) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Arena by_blocks(/*skips_touches=*/true);
    Arena by_halves(/*skips_touches=*/false);
    Steps steps(seed);
    for (int number = 0; number < 200; ++number) {
      const Step step = steps.next();
      by_blocks.run(step);
      by_halves.run_by_halves(step);
      ASSERT_EQ(by_blocks.state(), by_halves.state()) << "seed " << seed << ", step " << number;
      ASSERT_EQ(std::memcmp(&by_blocks.counters(), &by_halves.counters(), sizeof(uvmsim_counters)),
                0)
          << "seed " << seed << ", step " << number;
      ASSERT_EQ(by_blocks.broken_invariant(), "") << "seed " << seed << ", step " << number;
      ASSERT_EQ(by_halves.broken_invariant(), "") << "seed " << seed << ", step " << number;
    }
  }
}

}  // namespace
}  // namespace uvmsim::test
