// The stand-ins export every listed name. A name without an implementation reports that once.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <fstream>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

std::vector<std::string> names_in(const char* file) {
  std::ifstream stream(std::string(UVMSIM_TEST_NAMES_DIR "/") + file);
  std::vector<std::string> names;
  for (std::string name; stream >> name;) names.push_back(name);
  return names;
}

TEST(ExportedNames, TheDriverHasEveryListedName) {
  const auto names = names_in("cuda_symbols.txt");
  EXPECT_GT(names.size(), 600U);
  for (const std::string& name : names) {
    EXPECT_NE(StandIn::driver().find(name.c_str()), nullptr) << name;
  }
}

TEST(ExportedNames, TheRuntimeHasEveryListedNameUnderItsVersion) {
  const auto names = names_in("cudart_symbols.txt");
  EXPECT_GT(names.size(), 400U);
  for (const std::string& name : names) {
    EXPECT_NE(StandIn::runtime().find(name.c_str(), "libcudart.so.13"), nullptr) << name;
  }
  EXPECT_EQ(StandIn::runtime().find("cudaMalloc", "libcudart.so.12"), nullptr);
}

TEST(ExportedNames, TheManagementLibraryHasEveryListedNameAndStubsAreQuiet) {
  const StandIn nvml("libnvidia-ml.so.1");
  const auto names = names_in("nvml_symbols.txt");
  EXPECT_GT(names.size(), 400U);
  for (const std::string& name : names) EXPECT_NE(nvml.find(name.c_str()), nullptr) << name;
  constexpr int kNotSupported = 3;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(nvml.function<int(void*, unsigned*)>("nvmlDeviceGetFanSpeed")(nullptr, nullptr),
            kNotSupported);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ExportedNames, AStubOfTheDriverIsCountedAndSaysSoOnce) {
  auto* stub = CU(cuGraphicsUnregisterResource);
  const std::uint64_t before = uvmsim_call_count("cuGraphicsUnregisterResource");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(stub(nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(stub(nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "uvmsim: cuGraphicsUnregisterResource is not implemented by the simulated device "
            "(returned \"not "
            "supported\")\n");
  EXPECT_EQ(uvmsim_call_count("cuGraphicsUnregisterResource"), before + 2);

  std::uint64_t visited = 0;
  uvmsim_each_unimplemented(
      [](const char* name, std::uint64_t calls, void* out) {
        if (std::string(name) == "cuGraphicsUnregisterResource")
          *static_cast<std::uint64_t*>(out) = calls;
      },
      &visited);
  EXPECT_EQ(visited, before + 2);
}

TEST(ExportedNames, AStubOfTheRuntimeSetsTheLastError) {
  auto* stub = RT(cudaFreeMipmappedArray);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(stub(nullptr), cudaErrorNotSupported);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(RT(cudaPeekAtLastError)(), cudaErrorNotSupported);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorNotSupported);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaSuccess);
}

}  // namespace
}  // namespace uvmsim::test
