// The C interface of groups.
#include <uvmalloc/uvmalloc_groups.h>

#include <string>

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class GroupCallsTest : public testing::AllocatorTest {
 protected:
  uvmalloc_allocator* handle() { return reinterpret_cast<uvmalloc_allocator*>(allocator.get()); }
  uvmalloc_group open(const char* name) {
    uvmalloc_group group = 0;
    EXPECT_EQ(uvmalloc_group_open(handle(), name, &group), UVMALLOC_OK);
    return group;
  }
};

TEST_F(GroupCallsTest, AGroupSleepsAndWakes) {
  const uvmalloc_group group = open("llm");
  char* block = device(4 * kMiB, stream(1));
  EXPECT_EQ(uvmalloc_group_add(handle(), group, block), UVMALLOC_OK);
  const uvmalloc_group_options options{.struct_bytes = sizeof options,
                                       .priority = 2,
                                       .pinned = 1,
                                       .copies = UVMALLOC_COPIES_NONE,
                                       .limit_bytes = 0,
                                       .floor_bytes = 2 * kMiB,
                                       .idle_ms = 0,
                                       .file = nullptr};
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_OK);
  uint64_t bytes = 0;
  EXPECT_EQ(uvmalloc_group_sleep(handle(), group, 0, stream(1), 0, &bytes), UVMALLOC_OK);
  EXPECT_EQ(bytes, 4 * kMiB);
  uvmalloc_group_info info{};
  info.struct_bytes = sizeof info;
  EXPECT_EQ(uvmalloc_group_describe(handle(), group, &info), UVMALLOC_OK);
  EXPECT_EQ(info.state, UVMALLOC_GROUP_ASLEEP);
  EXPECT_EQ(info.host_bytes, 4 * kMiB);
  EXPECT_EQ(info.sleeps, 1u);
  EXPECT_EQ(uvmalloc_group_wake(handle(), group, 0, stream(1), UVMALLOC_GROUP_LAZILY, nullptr),
            UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_group_wake(handle(), group, 0, stream(1), 0, &bytes), UVMALLOC_OK);
  EXPECT_EQ(bytes, 4 * kMiB);
  EXPECT_EQ(uvmalloc_group_remove(handle(), block), UVMALLOC_OK);
  allocator->free(block);
}

TEST_F(GroupCallsTest, OptionsOfTheFirstVersionHaveNoFloorAndNoIdleTime) {
  const uvmalloc_group group = open("llm");
  uvmalloc_group_options options{};
  options.struct_bytes = sizeof options;
  options.floor_bytes = 2 * kMiB;
  options.idle_ms = 500;
  const auto settings = [&] {
    return Groups::of(*allocator)->figures(GroupNumber{group}).settings;
  };
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_OK);
  EXPECT_EQ(settings().floor_bytes, 2 * kMiB);
  EXPECT_EQ(settings().idle, std::chrono::milliseconds(500));
  options.struct_bytes = offsetof(uvmalloc_group_options, floor_bytes);
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_OK);
  EXPECT_EQ(settings(), GroupSettings{});
}

TEST_F(GroupCallsTest, BadInputIsNamed) {
  const uvmalloc_group group = open("llm");
  uvmalloc_group out = 0;
  EXPECT_EQ(uvmalloc_group_open(nullptr, "a", &out), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_open(handle(), nullptr, &out), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_open(handle(), "a", nullptr), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_open(handle(), "a b", &out), UVMALLOC_ERROR_INVALID_ARGUMENT);
  int outside = 0;
  EXPECT_EQ(uvmalloc_group_add(handle(), group, &outside), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_group_remove(handle(), &outside), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_group_sleep(handle(), group + 1, 0, stream(1), 0, nullptr),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_sleep(handle(), group, 5, stream(1), 0, nullptr),
            UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(uvmalloc_group_wake(handle(), group, -1, stream(1), 0, nullptr),
            UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(uvmalloc_group_sleep(handle(), group, 0, stream(1), 2, nullptr),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_group_sleep: the flags are 2; accepted: 0, 1");
  uvmalloc_group_options options{};
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_ERROR_INVALID_ARGUMENT);
  options.struct_bytes = sizeof options;
  options.copies = 3;
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_ERROR_INVALID_ARGUMENT);
  options.copies = 0;
  options.limit_bytes = 1;
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_ERROR_INVALID_ARGUMENT);
  options.limit_bytes = 0;
  options.idle_ms = UINT64_MAX;
  EXPECT_EQ(uvmalloc_group_configure(handle(), group, &options), UVMALLOC_ERROR_INVALID_ARGUMENT);
  uvmalloc_group_info info{};
  EXPECT_EQ(uvmalloc_group_describe(handle(), group, &info), UVMALLOC_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace uvm
