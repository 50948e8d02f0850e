// Where pages are, as cuMemGetLocationInfo tells.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kOneMiB = std::size_t{1} << 20;
constexpr std::size_t kPageBytes = 4096;

class LocationInfoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
    ASSERT_EQ(RT(cudaMallocManaged)(&memory_, 8 * kOneMiB, cudaMemAttachGlobal), cudaSuccess);
  }
  void TearDown() override { EXPECT_EQ(RT(cudaFree)(memory_), cudaSuccess); }

  void prefetch(std::size_t offset, std::size_t size, int device) {
    auto* call = StandIn::driver().function<CUresult(CUdeviceptr, std::size_t, int, CUstream)>(
        "cuMemPrefetchAsync");
    ASSERT_EQ(call(reinterpret_cast<CUdeviceptr>(memory_) + offset, size, device, nullptr),
              CUDA_SUCCESS);
  }
  static CUresult ask(void* address, std::size_t size, std::size_t summary, std::size_t sample,
                      CUmemLocation* out) {
    auto* call =
        StandIn::driver()
            .function<CUresult(CUdeviceptr, std::size_t, std::size_t, std::size_t, CUmemLocation*)>(
                "cuMemGetLocationInfo");
    return call(reinterpret_cast<CUdeviceptr>(address), size, summary, sample, out);
  }

  void* memory_ = nullptr;
};

TEST_F(LocationInfoTest, EachRegionHasItsOwnAnswer) {
  prefetch(0, 2 * kOneMiB, 1);
  prefetch(2 * kOneMiB, 2 * kOneMiB, CU_DEVICE_CPU);
  std::array<CUmemLocation, 3> found{};
  ASSERT_EQ(ask(memory_, 6 * kOneMiB, 2 * kOneMiB, 0, found.data()), CUDA_SUCCESS);
  EXPECT_EQ(found[0].type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(found[0].id, 1);
  EXPECT_EQ(found[1].type, CU_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(found[2].type, 0) << "nobody has touched these pages";
}

TEST_F(LocationInfoTest, TheMostCommonLocationOfTheSamplesWins) {
  prefetch(0, 2 * kOneMiB, 0);
  prefetch(0, 256 * kPageBytes + 4 * kPageBytes, CU_DEVICE_CPU);
  CUmemLocation found{};
  ASSERT_EQ(ask(memory_, 2 * kOneMiB, 2 * kOneMiB, kPageBytes, &found), CUDA_SUCCESS);
  EXPECT_EQ(found.type, CU_MEM_LOCATION_TYPE_HOST);
  ASSERT_EQ(
      ask(memory_, 2 * kOneMiB, kPageBytes, kPageBytes, std::array<CUmemLocation, 512>().data()),
      CUDA_SUCCESS);
}

TEST_F(LocationInfoTest, TheLastRegionMayBeShorter) {
  prefetch(4 * kOneMiB, 2 * kOneMiB, 0);
  std::array<CUmemLocation, 2> found{};
  ASSERT_EQ(ask(memory_, 5 * kOneMiB, 4 * kOneMiB, 0, found.data()), CUDA_SUCCESS);
  EXPECT_EQ(found[0].type, 0);
  EXPECT_EQ(found[1].type, CU_MEM_LOCATION_TYPE_DEVICE);
}

TEST_F(LocationInfoTest, WrongSizesAndOtherMemoryAreRefused) {
  CUmemLocation found{};
  EXPECT_EQ(ask(memory_, kOneMiB, 0, 0, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(memory_, kOneMiB, 2 * kOneMiB, 0, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(memory_, kOneMiB, kOneMiB, 2 * kOneMiB, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(memory_, kOneMiB, kOneMiB, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  void* device = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&device, kOneMiB), cudaSuccess);
  EXPECT_EQ(ask(device, kOneMiB, kOneMiB, 0, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(RT(cudaFree)(device), cudaSuccess);
}

}  // namespace
}  // namespace uvmsim::test
