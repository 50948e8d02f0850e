// Words in the arguments of kernels and graphs.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

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

TEST(GraphUses, AGraphHasTheWordsOfItsNodesOnceInTheirOrder) {
  GraphUses graphs;
  const int graph = 0;
  const int nodes[2] = {};
  EXPECT_EQ(graphs.words_of(&graph), nullptr);
  graphs.set_node(&graph, {&nodes[0], {kFirst}});
  EXPECT_EQ(graphs.words_of(&graph), nullptr) << "nobody knows it";
  graphs.set(&graph, {{&nodes[0], {kSecond, kFirst}}, {&nodes[1], {kFirst}}});
  EXPECT_EQ(*graphs.words_of(&graph), (Words{kSecond, kFirst}));
  graphs.set_node(&graph, {&nodes[0], {}});
  EXPECT_EQ(*graphs.words_of(&graph), Words{kFirst});
  graphs.set_node(&graph, {&nodes[1], {}});
  EXPECT_EQ(graphs.words_of(&graph), nullptr);
  graphs.set(&graph, {{&nodes[0], {kSecond}}});
  EXPECT_EQ(*graphs.words_of(&graph), Words{kSecond});
  graphs.forget(&graph);
  EXPECT_EQ(graphs.words_of(&graph), nullptr);
}

}  // namespace
}  // namespace uvm::preload
