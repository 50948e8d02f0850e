// The libcu++ adapter, on every runtime.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include <uvmalloc/cuda_memory_resource.hpp>
#include "allocator/interface.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

using cuda::mr::device_accessible;
using cuda::mr::host_accessible;
#if CCCL_VERSION < 3001000
static_assert(cuda::mr::resource_with<CudaMemoryResource, host_accessible, device_accessible>);
static_assert(
    cuda::mr::async_resource_with<CudaMemoryResource, host_accessible, device_accessible>);
#else
static_assert(
    cuda::mr::synchronous_resource_with<CudaMemoryResource, host_accessible, device_accessible>);
static_assert(cuda::mr::resource_with<CudaMemoryResource, host_accessible, device_accessible>);
#endif

class CudaResource : public ::testing::TestWithParam<const char*> {
 protected:
  static Configuration configuration() {
    Configuration out;
    out.budget_bytes = 64 * kMiB;
    return out;
  }

  CachingManagedAllocator allocator{testing::open(GetParam()), configuration()};
  CudaMemoryResource resource{allocator};
  const cuda::stream_ref stream{cudaStream_t{nullptr}};
};

TEST_P(CudaResource, BlocksOfAStreamAreUsedAgainByItsNextRequest) {
  void* block = resource.allocate(stream, 3 * kMiB);
  EXPECT_EQ(allocator.find(block)->facade, Facade::kDevice);
  resource.deallocate(stream, block, 3 * kMiB);
  EXPECT_EQ(resource.allocate(stream, 3 * kMiB), block);
  resource.deallocate(stream, block, 3 * kMiB);
  EXPECT_EQ(allocator.statistics().fences, 0u);
}

TEST_P(CudaResource, AFreeOnAnotherStreamIsFenced) {
  StreamHandle created = nullptr;
  ASSERT_TRUE(allocator.inspection().runtime().create_stream(0, &created).ok());
  void* block = resource.allocate(stream, 3 * kMiB);
  resource.deallocate(cuda::stream_ref(static_cast<cudaStream_t>(created)), block, 3 * kMiB);
  EXPECT_EQ(allocator.statistics().fences, 1u);
  allocator.release_cached();
  EXPECT_TRUE(allocator.inspection().runtime().destroy_stream(0, created).ok());
}

TEST_P(CudaResource, TypeErasedReferencesReachIt) {
#if CCCL_VERSION < 3001000
  cuda::mr::async_resource_ref<device_accessible> any = resource;
  void* block = any.allocate_async(100, 256, stream);
  EXPECT_TRUE(allocator.find(block)->live);
  any.deallocate_async(block, 100, 256, stream);
#else
  cuda::mr::resource_ref<device_accessible> any = resource;
  void* block = any.allocate(stream, 100, 256);
  EXPECT_TRUE(allocator.find(block)->live);
  any.deallocate(stream, block, 100, 256);
#endif
  EXPECT_FALSE(allocator.find(block)->live);
}

TEST_P(CudaResource, SynchronousDeviceMemoryWaitsForTheDefaultStream) {
  void* block = resource.allocate_sync(100, 256);
  EXPECT_EQ(allocator.inspection().runtime_calls().at("synchronize_stream"), 1u);
  resource.deallocate_sync(block, 100, 256);
  CudaMemoryResource host(allocator, Facade::kHost);
  host.deallocate_sync(host.allocate_sync(100), 100);
  EXPECT_EQ(allocator.inspection().runtime_calls().at("synchronize_stream"), 1u);
}

TEST_P(CudaResource, FailuresAreBadAllocOrInvalidArgument) {
  EXPECT_THROW((void)resource.allocate(stream, 65 * kMiB), std::bad_alloc);
  EXPECT_THROW((void)resource.allocate_sync(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW((void)resource.allocate(stream, 64, 96), std::invalid_argument);
  EXPECT_THROW(CudaMemoryResource(allocator, Facade::kDevice, 1), std::invalid_argument);
  EXPECT_EQ(resource.allocate(stream, 0), nullptr);
  resource.deallocate(stream, nullptr, 0);
}

TEST_P(CudaResource, WhatIsNoBlockOfTheAllocatorIsReportedAndNotFreed) {
  char foreign = 0;
  for (bool on_stream : {true, false}) {
    ::testing::internal::CaptureStderr();
    if (on_stream) {
      resource.deallocate(stream, &foreign, 1);
    } else {
      resource.deallocate_sync(&foreign, 1);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("this resource did not allocate the memory; nothing was freed"),
              std::string::npos)
        << said;
  }
}

TEST_P(CudaResource, EqualsTheSameFacadeOfTheSameAllocator) {
  EXPECT_TRUE(resource == CudaMemoryResource(allocator));
  EXPECT_TRUE(resource != CudaMemoryResource(allocator, Facade::kHost));
}

INSTANTIATE_TEST_SUITE_P(Runtimes, CudaResource, ::testing::ValuesIn(testing::kRuntimes),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace uvm
