// What a move does, by the table in tests/support/moves.def, for the C++ and the C interface.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <uvmalloc/uvmalloc.h>
#include "allocator/interface.hpp"

#include "tests/support/fake_runtime.hpp"
#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using enum Facade;

constexpr int kBack = UVMALLOC_PLACE_HOST;
constexpr std::size_t kSmall = 4096;
constexpr const char* kSame = "the same";

struct Step {
  int to;
  int stream;
};

struct Row {
  Facade facade;
  std::vector<int> recorded;
  std::vector<Step> moves;
  const char* waits;
  const char* waits_if_not_blocking;
  const char* hints;
  std::vector<int> uses;
  std::size_t size_bytes = 4 * kMiB;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << to_string(row.facade) << fmt::format(", used by {}", row.recorded);
  for (const auto& [to, stream] : row.moves) *out << ", to " << to << " for " << stream;
}

const Row kRows[] = {
#define UVM_MOVE(...) {__VA_ARGS__},
#include "tests/support/moves.def"
#undef UVM_MOVE
};

class Moves : public ::testing::TestWithParam<std::tuple<Row, bool, bool>> {
 protected:
  Moves() : machine(std::make_shared<testing::FakeMachine>(2)) {
    Configuration configuration;
    configuration.budget_bytes = 256 * kMiB;
    own = std::make_unique<CachingManagedAllocator>(std::make_unique<testing::FakeRuntime>(machine),
                                                    configuration);
    block = static_cast<char*>(own->allocate(row.facade, 0, row.size_bytes, stream(1)));
    block[0] = block[row.size_bytes - 1] = 42;
    for (const int each : row.recorded) own->record_use(block, 0, stream(each));
  }

  static Place place(int to) { return to == kBack ? Place::host() : Place::device(to); }
  static StreamHandle stream(int number) { return testing::stream(static_cast<unsigned>(number)); }

  // The C++ interface has no move from the host to the host: C records the use and waits instead.
  void move(const Step& step) {
    const Place from = own->find(block)->location;
    const Place to = place(step.to);
    const bool stays = from.is_host() && to.is_host();
    machine->waits.clear();
    machine->hints.clear();
    if (is_c) {
      auto* handle = reinterpret_cast<uvmalloc_allocator*>(own.get());
      ASSERT_EQ(uvmalloc_move(handle, block + 100, step.to, stream(step.stream), waits ? 1 : 0),
                UVMALLOC_OK);
    } else if (stays) {
      ASSERT_TRUE(own->record_use(block + 100, step.stream / 10, stream(step.stream)));
      if (waits) own->streams().wait_for_uses(block);
    } else {
      const MoveRequest request{from, to, step.stream / 10, stream(step.stream), waits};
      ASSERT_NE(own->move(block + 100, request), nullptr);
    }
    if (stays) return;
    ++(to.is_host()     ? expected.device_to_host
       : from.is_host() ? expected.host_to_device
                        : expected.device_to_device);
    expected.bytes += row.size_bytes;
  }

  std::string waits_seen() const {
    std::string text = fmt::format("{}", fmt::join(machine->waits, " "));
    text = std::regex_replace(text, std::regex(" waits for "), "<");
    return std::regex_replace(text, std::regex("stream "), "");
  }
  std::string hints_seen() const {
    std::vector<std::string> seen;
    for (const Hint& hint : machine->hints) {
      EXPECT_EQ(hint.address, block);
      EXPECT_EQ(hint.size_bytes, row.size_bytes);
      const std::string kind = hint.kind == HintKind::kPrefetch        ? "fetch"
                               : hint.advice == Advice::kSetAccessedBy ? "map"
                                                                       : "prefer";
      EXPECT_TRUE(kind != "prefer" || hint.advice == Advice::kSetPreferredLocation);
      seen.push_back(kind + (hint.place.is_host() ? " h" : fmt::format(" {}", hint.place.index)));
    }
    return fmt::format("{}", fmt::join(seen, " "));
  }

  const Row& row = std::get<0>(GetParam());
  const bool is_c = std::get<1>(GetParam());
  const bool waits = std::get<2>(GetParam());
  std::shared_ptr<testing::FakeMachine> machine;
  std::unique_ptr<CachingManagedAllocator> own;
  char* block = nullptr;
  MoveStatistics expected;
};

TEST_P(Moves, DoWhatTheTableSays) {
  for (const Step& step : row.moves) ASSERT_NO_FATAL_FAILURE(move(step));
  const bool blocks = waits || row.waits_if_not_blocking == kSame;
  EXPECT_EQ(waits_seen(), blocks ? row.waits : row.waits_if_not_blocking);
  EXPECT_EQ(hints_seen(), row.hints);
  std::vector<DeviceStream> uses;
  for (const int each : row.uses) uses.push_back(DeviceStream::named(each / 10, stream(each)));
  EXPECT_EQ(own->streams().uses_of(block), uses);

  const BlockDescription described = *own->find(block);
  const MoveStatistics moves = own->statistics().moves;
  EXPECT_EQ(described.location, place(row.moves.back().to));
  EXPECT_EQ(described.base, block);
  EXPECT_EQ(described.movable, row.size_bytes > kSmall);
  EXPECT_EQ(described.used_by_host, row.facade != kDevice || expected.device_to_host > 0);
  EXPECT_EQ(moves.host_to_device, expected.host_to_device);
  EXPECT_EQ(moves.device_to_host, expected.device_to_host);
  EXPECT_EQ(moves.device_to_device, expected.device_to_device);
  EXPECT_EQ(moves.bytes, expected.bytes);
  if (!is_c) {
    EXPECT_EQ(described.references, 1 + expected.total()) << "a record for each move";
  }
  EXPECT_EQ(block[0] + block[row.size_bytes - 1], 84);
}

INSTANTIATE_TEST_SUITE_P(All, Moves,
                         ::testing::Combine(::testing::ValuesIn(kRows), ::testing::Bool(),
                                            ::testing::Bool()));

}  // namespace
}  // namespace uvm
