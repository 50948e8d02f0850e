// Behaviour that depends on the version of CUDA's driver; HIP's library has other rules.
#include <dlfcn.h>

#include <cstdlib>

#include "tests/conformance/runtimes.hpp"

namespace uvm {
namespace {

TEST(CudaRuntime, DevicesHaveDiscardFromTheDriverForCuda13On) {
  auto runtime = testing::open("cuda");
  const auto get_version = reinterpret_cast<int (*)(int*)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuDriverGetVersion"));
  int version = 0;
  ASSERT_EQ(get_version(&version), 0);
  if (const char* wanted = std::getenv("UVMSIM_DRIVER_VERSION")) {
    EXPECT_EQ(version, std::atoi(wanted));
  }
  DeviceDescription description;
  ASSERT_TRUE(runtime->describe(0, &description).ok());
  EXPECT_EQ(description.capabilities.discard, version >= 13000);
  EXPECT_EQ(description.capabilities.batches, version >= 13000);
}

}  // namespace
}  // namespace uvm
