// Words in the arguments of kernels and graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "preload/graph_parts.hpp"
#include "preload/graph_uses.hpp"
#include "preload/kernel_arguments.hpp"

namespace uvm::preload {
namespace {

constexpr std::uintptr_t kFirst = 0x7f0000001000;
constexpr std::uintptr_t kSecond = 0x7f0000002008;

TEST(KernelArguments, ValuesThatCanBeNoAddressesAreLeftOut) {
  const std::array<std::uintptr_t, 6> values = {0,       kFirst, 4095, ~std::uintptr_t{0},
                                                kSecond, kFirst};
  std::array<std::byte, sizeof values + 1> unaligned{};
  std::memcpy(&unaligned[1], values.data(), sizeof values);
  Words words;
  add_words(&unaligned[1], sizeof values, &words);
  EXPECT_EQ(words, (Words{kFirst, kSecond}));
  add_words(values.data(), 7, &words);
  EXPECT_EQ(words.size(), 2u);
}

TEST(KernelArguments, AStructureIsLookedIntoWhereAddressesCanBe) {
  const int kernel = 0;
  KernelLayouts layouts;
  const std::array<std::uintptr_t, 2> structure = {3, kSecond};
  const std::uintptr_t address = kFirst;
  const std::uintptr_t packed = 0x7f0000003000;
  const void* const arguments[] = {&address, &structure, &packed};
  int calls = 0;
  const auto ask = [&] {
    ++calls;
    return std::optional(KernelLayouts::Layout{{0, 8}, {8, 16}, {28, 8}});
  };
  for (int i = 0; i < 2; ++i) {
    Words words;
    EXPECT_TRUE(layouts.add_arguments(&kernel, const_cast<void* const*>(arguments), &words, ask));
    EXPECT_EQ(words, (Words{kFirst, kSecond}));
  }
  EXPECT_EQ(calls, 1);
}

TEST(KernelArguments, AHandleMayNameAnotherKernelOnceCodeWasUnloaded) {
  const int kernel = 0;
  KernelLayouts layouts;
  Words words;
  std::uintptr_t value = kFirst;
  void* const arguments[] = {&value};
  const auto no_layout = [] { return std::optional<KernelLayouts::Layout>(); };
  EXPECT_FALSE(layouts.add_arguments(&kernel, arguments, &words, no_layout));
  const auto of_one = [] { return std::optional(KernelLayouts::Layout{{0, 8}}); };
  EXPECT_FALSE(layouts.add_arguments(&kernel, arguments, &words, of_one))
      << "the layout is not looked up again";
  layouts.forget_all();
  EXPECT_TRUE(layouts.add_arguments(&kernel, arguments, &words, [&] {
    layouts.forget_all();  // as another thread may do meanwhile
    return of_one();
  }));
  EXPECT_EQ(words, Words{kFirst});
  EXPECT_FALSE(layouts.add_arguments(&kernel, arguments, &words, no_layout))
      << "an answer of before the end of the code is not kept";
}

// The words of the graph; empty if it is not known.
Words words_of(const GraphUses& graphs, const void* graph) {
  const auto uses = graphs.find(graph).uses;
  return uses != nullptr ? uses->words : Words();
}

TEST(GraphUses, AGraphHasTheWordsOfItsNodesOnceInTheirOrder) {
  GraphUses graphs;
  const int graph = 0;
  const int nodes[2] = {};
  EXPECT_EQ(graphs.find(&graph).uses, nullptr);
  graphs.set_node(&graph, {&nodes[0], {kFirst}});
  EXPECT_EQ(graphs.find(&graph).uses, nullptr) << "nobody knows it";
  graphs.set(&graph, GraphUses::Nodes{{&nodes[0], {kSecond, kFirst}}, {&nodes[1], {kFirst}}});
  EXPECT_EQ(words_of(graphs, &graph), (Words{kSecond, kFirst}));
  graphs.set_node(&graph, {&nodes[0], {}});
  EXPECT_EQ(words_of(graphs, &graph), Words{kFirst});
  graphs.set_node(&graph, {&nodes[1], {}});
  EXPECT_EQ(graphs.find(&graph).uses, nullptr);
  graphs.set(&graph, GraphUses::Nodes{{&nodes[0], {kSecond}}});
  EXPECT_EQ(words_of(graphs, &graph), Words{kSecond});
  graphs.forget(&graph);
  EXPECT_EQ(graphs.find(&graph).uses, nullptr);
}

int destroyed = 0;

TEST(GraphUses, PartsAreDestroyedOnceAtAChangeOrWithTheirGraph) {
  GraphUses graphs;
  const int graph = 0;
  destroyed = 0;
  const auto two_parts = [] {
    auto parts = std::make_shared<GraphParts>([](void*) { ++destroyed; });
    for (int i = 0; i < 2; ++i) parts->add({});
    return parts;
  };
  EXPECT_FALSE(graphs.has_parts());
  graphs.set(&graph, GraphUses::Nodes{}, two_parts());
  EXPECT_TRUE(graphs.has_parts());
  EXPECT_EQ(destroyed, 0);
  graphs.drop_parts(&graph);
  EXPECT_EQ(destroyed, 2);
  graphs.set(&graph, GraphUses::Nodes{});
  EXPECT_NE(graphs.find(&graph).parts, nullptr) << "orders the launches after an update too";
  graphs.set(&graph, GraphUses::Nodes{}, two_parts());
  graphs.forget(&graph);
  EXPECT_EQ(destroyed, 4);
}

// ---- dividing a graph

using Pieces = std::vector<std::vector<std::size_t>>;

Pieces pieces(std::size_t count, std::vector<NodeOrder> dependencies) {
  return pieces_of(count, dependencies);
}

TEST(GraphParts, EachNodeOfAChainIsAPiece) {
  EXPECT_EQ(pieces(0, {}), Pieces{});
  EXPECT_EQ(pieces(3, {{2, 0}, {0, 1}}), (Pieces{{2}, {0}, {1}}));
}

TEST(GraphParts, NodesThatMayRunAtTheSameTimeAreOnePiece) {
  EXPECT_EQ(pieces(2, {}), (Pieces{{0, 1}}));
  EXPECT_EQ(pieces(5, {{0, 1}, {0, 2}, {1, 3}, {2, 3}, {3, 4}}), (Pieces{{0}, {1, 2, 3}, {4}}));
  EXPECT_EQ(pieces(4, {{0, 1}, {0, 2}, {1, 3}}), (Pieces{{0}, {1, 2, 3}})) << "2 ends nowhere";
  EXPECT_EQ(pieces(4, {{0, 2}, {1, 2}, {1, 3}}), (Pieces{{0, 1, 2, 3}}));
}

// Random graphs: every node comes after all nodes of the pieces before its own.
TEST(GraphParts, APieceComesAfterAllPiecesBeforeIt) {
  std::mt19937 random(1);
  std::size_t divided = 0;
  for (int round = 0; round < 300; ++round) {
    constexpr std::size_t kNodes = 10;
    std::vector<std::size_t> names(kNodes);
    std::iota(names.begin(), names.end(), 0);
    std::ranges::shuffle(names, random);
    std::array<std::array<bool, kNodes>, kNodes> comes_after{};
    std::vector<NodeOrder> dependencies;
    for (std::size_t to = 1; to < kNodes; ++to) {
      for (std::size_t from = to - std::min<std::size_t>(to, 3); from < to; ++from) {
        if (random() % 3 == 0) continue;
        dependencies.push_back({names[from], names[to]});
        comes_after[names[to]][names[from]] = true;
        for (std::size_t i = 0; i < kNodes; ++i)
          comes_after[names[to]][i] |= comes_after[names[from]][i];
      }
    }
    const Pieces found = pieces(kNodes, dependencies);
    std::vector<std::size_t> earlier;
    for (const auto& piece : found) {
      for (const std::size_t node : piece) {
        for (const std::size_t other : earlier)
          ASSERT_TRUE(comes_after[node][other]) << round << ": " << node << " after " << other;
      }
      earlier.insert(earlier.end(), piece.begin(), piece.end());
    }
    ASSERT_EQ(std::set(earlier.begin(), earlier.end()).size(), kNodes);
    divided += found.size() > 1;
  }
  EXPECT_GT(divided, 100U);
}

TEST(GraphParts, PiecesAreJoinedWhileTheyUseLittle) {
  const std::vector<std::vector<live::UseRange>> ranges = {
      {{100, 4}}, {{100, 4}, {200, 4}}, {{200, 4}}, {{300, 20}}, {}, {{400, 1}}};
  const Pieces chain = {{0}, {1}, {2}, {3}, {4}, {5}};
  const auto joined = [&](std::size_t most_bytes) {
    return joined_pieces(chain, most_bytes, [&](std::size_t node) { return ranges[node]; });
  };
  EXPECT_EQ(joined(8), (Pieces{{0, 1, 2}, {3, 4}, {5}})) << "a block counts once";
  EXPECT_EQ(joined(100), (Pieces{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(joined(1), (Pieces{{0}, {1, 2}, {3, 4}, {5}})) << "a node is never divided";
}

}  // namespace
}  // namespace uvm::preload
