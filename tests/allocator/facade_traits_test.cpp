// What a facade decides about sizes.
#include <uvmalloc/allocator/policy/facade_traits.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

namespace uvm {
namespace {

TEST(FacadeTraits, LargePinnedBlocksAreWholePagesOfThisHost) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(host_page_bytes(), page);
  EXPECT_EQ(in_host_pages(kSmallBytes), kSmallBytes) << "small ones have no page of their own";
  EXPECT_EQ(in_host_pages(kSmallBytes + 1), round_up(kSmallBytes + 1, page));
  EXPECT_EQ(in_host_pages(page), page);
  EXPECT_EQ(in_host_pages(page + 1), std::max(2 * page, round_up(kSmallBytes + 1, page)));
  EXPECT_EQ(in_host_pages(10 * page - 1), 10 * page);
}

}  // namespace
}  // namespace uvm
