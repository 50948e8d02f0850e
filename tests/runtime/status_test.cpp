// How the values of the runtime interface read as text.
#include <gtest/gtest.h>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/registry.hpp>

namespace uvm {
namespace {

TEST(Place, HasAName) {
  EXPECT_EQ(to_string(Place::host()), "host");
  EXPECT_EQ(to_string(Place::device(3)), "device:3");
  EXPECT_EQ(to_string(Place::nowhere()), "nowhere");
}

TEST(RuntimeStatus, SaysWhichCallFailedAndHow) {
  EXPECT_EQ(RuntimeStatus{}.text(), "ok");
  RuntimeStatus status{RuntimeError::kOutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY",
                       "cuMemAllocManaged"};
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.text(), "cuMemAllocManaged: CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST(Advice, HasANameForEachValue) {
  EXPECT_EQ(to_string(Advice::kSetReadMostly), "set_read_mostly");
  EXPECT_EQ(to_string(Advice::kUnsetReadMostly), "unset_read_mostly");
  EXPECT_EQ(to_string(Advice::kSetPreferredLocation), "set_preferred_location");
  EXPECT_EQ(to_string(Advice::kUnsetPreferredLocation), "unset_preferred_location");
  EXPECT_EQ(to_string(Advice::kSetAccessedBy), "set_accessed_by");
  EXPECT_EQ(to_string(Advice::kUnsetAccessedBy), "unset_accessed_by");
  EXPECT_EQ(to_string(static_cast<Advice>(0)), "unknown");
}

// Adds a runtime that no machine has, like a static object in a third party's library.
const RuntimeRegistration kAbsent("absent", [](std::string* reason) {
  *reason = "not on this machine";
  return std::unique_ptr<DeviceRuntime>();
});

TEST(RuntimeRegistry, TheReasonsOfAllThatWereTriedAreGiven) {
  RuntimeChoice choice = open_runtime("absent");
  EXPECT_EQ(choice.runtime, nullptr);
  EXPECT_EQ(choice.reason, "absent: not on this machine");
}

TEST(RuntimeRegistry, NamesAreInTheOrderOfRegistration) {
  std::vector<std::string> names = runtime_names();
  std::erase(names, "hip");  // not in a build without HIP's headers
  EXPECT_EQ(names, (std::vector<std::string>{"cuda", "absent"}));
}

TEST(RuntimeRegistry, ARuntimeSaysWhetherTheProgramHasInitialisedItsDriver) {
  EXPECT_FALSE(is_runtime_initialized("cuda")) << "nobody has called cuInit";
  EXPECT_FALSE(is_runtime_initialized("auto"));
  EXPECT_TRUE(is_runtime_initialized("absent")) << "it has no questions, and is named";
  EXPECT_FALSE(is_runtime_initialized("abacus"));
  bool initialized = false;
  ASSERT_TRUE(add_runtime("with_questions",
                          [](std::string*) { return std::unique_ptr<DeviceRuntime>(); },
                          {[&] { return initialized; }, [] { return false; }}));
  EXPECT_FALSE(is_runtime_initialized("with_questions"));
  EXPECT_FALSE(is_runtime_present("with_questions"));
  EXPECT_TRUE(is_runtime_present("absent"));
  initialized = true;
  EXPECT_TRUE(is_runtime_initialized("with_questions"));
  EXPECT_TRUE(is_runtime_initialized("auto"));
}

}  // namespace
}  // namespace uvm
