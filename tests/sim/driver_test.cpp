// The driver interface, used like a program that has opened libcuda.so.1.
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kBlock = std::size_t{2} << 20;

// Functions that cuda.h hides behind macros.
using AdviseByDevice = CUresult(CUdeviceptr, size_t, CUmem_advise, CUdevice);
using PrefetchByDevice = CUresult(CUdeviceptr, size_t, CUdevice, CUstream);

class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemAllocManaged)(&managed_, 4 * kBlock, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    uvmsim_reset_counters();
  }

  void TearDown() override {
    EXPECT_EQ(CU(cuMemFree_v2)(managed_), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamDestroy_v2)(stream_), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
  }

  std::size_t resident(std::size_t offset, std::size_t bytes, int location) {
    std::size_t found = 0;
    EXPECT_EQ(uvmsim_residency(reinterpret_cast<void*>(managed_ + offset), bytes, location, &found),
              UVMSIM_OK);
    return found;
  }

  CUstream stream_ = nullptr;
  CUdeviceptr managed_ = 0;
};

constexpr CUmemLocation kDevice0{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
constexpr CUmemLocation kHostLocation{CU_MEM_LOCATION_TYPE_HOST, {0}};

TEST_F(DriverTest, AContextThatTheProgramMakesIsCurrentUntilItIsDestroyed) {
  CUcontext primary = nullptr;
  ASSERT_EQ(CU(cuCtxGetCurrent)(&primary), CUDA_SUCCESS);
  auto* create = reinterpret_cast<CUresult (*)(CUcontext*, CUctxCreateParams*, unsigned, CUdevice)>(
      StandIn::driver().find("cuCtxCreate_v4"));
  CUcontext made = nullptr;
  ASSERT_EQ(create(&made, nullptr, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(create(&made, nullptr, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  CUcontext current = nullptr;
  ASSERT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, made);
  CUdevice device = -1;
  ASSERT_EQ(CU(cuCtxGetDevice)(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  unsigned long long id = 0;
  unsigned long long other_id = 0;
  EXPECT_EQ(CU(cuCtxGetId)(made, &id), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxGetId)(primary, &other_id), CUDA_SUCCESS);
  EXPECT_NE(id, other_id);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(primary), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(made), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxSetCurrent)(made), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, primary);
}

TEST_F(DriverTest, RowsOfAPitchedAllocationAreAligned) {
  CUdeviceptr memory = 0;
  size_t pitch_bytes = 0;
  EXPECT_EQ(CU(cuMemAllocPitch_v2)(&memory, &pitch_bytes, 100, 10, 3), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuMemAllocPitch_v2)(&memory, &pitch_bytes, 600, 10, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch_bytes, 1024U);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_EQ(CU(cuMemGetAddressRange_v2)(&base, &bytes, memory), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 10240U);
  EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemAllocPitch_v2)(&memory, &pitch_bytes, 1 << 30, std::size_t{1} << 40, 4),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(DriverTest, AMessageSaysWhatAProgramWithTheStaticRuntimeCanDo) {
  const void* table = this;
  const CUuuid id{{0x6b, char(0xd5), char(0xfb), 0x6c, 0x5b, char(0xf4), char(0xe7), 0x4a,
                   char(0x89), char(0x87), char(0xd9), 0x39, 0x12, char(0xfd), char(0x9d),
                   char(0xf9)}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CU(cuGetExportTable)(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CU(cuGetExportTable)(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(table, nullptr);
  EXPECT_EQ(said.substr(0, 8), "uvmsim: ");
  EXPECT_NE(said.find("sim_stand_in_test contains CUDA's static runtime"), std::string::npos);
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << "once for a program";
}

TEST_F(DriverTest, HasNoOtherPrivateTables) {
  const void* table = this;
  const CUuuid id{};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CU(cuGetExportTable)(&table, &id), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(CU(cuGetExportTable)(&table, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(table, nullptr);
}

TEST_F(DriverTest, DescribesTheDevice) {
  int count = 0;
  ASSERT_EQ(CU(cuDeviceGetCount)(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  CUdevice device = -1;
  EXPECT_EQ(CU(cuDeviceGet)(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(CU(cuDeviceGet)(&device, 1), CUDA_SUCCESS);
  char name[64];
  ASSERT_EQ(CU(cuDeviceGetName)(name, sizeof name, device), CUDA_SUCCESS);
  EXPECT_STREQ(name, "UVM Simulated Device");
  struct {
    CUdevice_attribute attribute;
    int value;
  } const expected[] = {{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
                        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
                        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
                        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0},
                        {CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, CU_DEVICE_NUMA_CONFIG_NUMA_NODE},
                        {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0}};
  for (const auto& [attribute, want] : expected) {
    int value = -1;
    EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, attribute, device), CUDA_SUCCESS);
    EXPECT_EQ(value, want) << attribute;
  }
  int version = 0;
  ASSERT_EQ(CU(cuDriverGetVersion)(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 13050);
}

TEST_F(DriverTest, AdvisePrefetchAndDiscardReachTheEngineInBothForms) {
  ASSERT_EQ(CU(cuMemAdvise_v2)(managed_, kBlock, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice0),
            CUDA_SUCCESS);
  auto* advise = StandIn::driver().function<AdviseByDevice>("cuMemAdvise");
  ASSERT_EQ(advise(managed_ + kBlock, kBlock, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU),
            CUDA_SUCCESS);
  int preferred = 0;
  uvmsim_advice(reinterpret_cast<void*>(managed_), &preferred, nullptr, nullptr);
  EXPECT_EQ(preferred, 0);
  uvmsim_advice(reinterpret_cast<void*>(managed_ + kBlock), &preferred, nullptr, nullptr);
  EXPECT_EQ(preferred, UVMSIM_HOST);

  ASSERT_EQ(CU(cuMemPrefetchAsync_v2)(managed_, kBlock, kDevice0, 0, stream_), CUDA_SUCCESS);
  EXPECT_EQ(resident(0, 4 * kBlock, 0), kBlock);
  auto* prefetch = StandIn::driver().function<PrefetchByDevice>("cuMemPrefetchAsync");
  ASSERT_EQ(prefetch(managed_, kBlock, CU_DEVICE_CPU, stream_), CUDA_SUCCESS);
  EXPECT_EQ(resident(0, 4 * kBlock, UVMSIM_HOST), kBlock);

  int value = -3;
  ASSERT_EQ(
      CU(cuMemRangeGetAttribute)(&value, sizeof value,
                                 CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, managed_, kBlock),
      CUDA_SUCCESS);
  EXPECT_EQ(value, CU_DEVICE_CPU);
  ASSERT_EQ(
      CU(cuMemRangeGetAttribute)(&value, sizeof value, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                 managed_, 2 * kBlock),
      CUDA_SUCCESS);
  EXPECT_EQ(value, CU_DEVICE_INVALID) << "not the same everywhere";

  EXPECT_EQ(uvmsim_call_count("cuMemAdvise"), 1U);
  EXPECT_EQ(uvmsim_call_count("cuMemAdvise_v2"), 1U);
  EXPECT_EQ(uvmsim_call_count("cuMemPrefetchAsync"), 1U);
  EXPECT_EQ(uvmsim_call_count("cuMemPrefetchAsync_v2"), 1U);
}

TEST_F(DriverTest, AdviceAboutNoDeviceOrNoManagedMemoryIsRefused) {
  const CUmemLocation device7{CU_MEM_LOCATION_TYPE_DEVICE, {7}};
  EXPECT_EQ(CU(cuMemAdvise_v2)(managed_, kBlock, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device7),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(
      CU(cuMemAdvise_v2)(managed_, 5 * kBlock, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice0),
      CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr device_memory = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&device_memory, kBlock), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemPrefetchAsync_v2)(device_memory, kBlock, kDevice0, 0, stream_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemFree_v2)(device_memory), CUDA_SUCCESS);
}

TEST_F(DriverTest, BatchedCallsTakeRangesAndRefuseTheLegacyStream) {
  std::array<CUdeviceptr, 3> addresses{managed_, managed_ + kBlock, managed_ + 3 * kBlock};
  std::array<size_t, 3> sizes{kBlock, kBlock, kBlock};
  std::array<CUmemLocation, 2> locations{kDevice0, kHostLocation};
  std::array<size_t, 2> indexes{0, 2};
  ASSERT_EQ(CU(cuMemPrefetchBatchAsync)(addresses.data(), sizes.data(), 3, locations.data(),
                                        indexes.data(), 2, 0, stream_),
            CUDA_SUCCESS);
  EXPECT_EQ(resident(0, 4 * kBlock, 0), 2 * kBlock);
  EXPECT_EQ(resident(3 * kBlock, kBlock, UVMSIM_HOST), kBlock);
  ASSERT_EQ(CU(cuMemDiscardBatchAsync)(addresses.data(), sizes.data(), 2, 0, stream_),
            CUDA_SUCCESS);
  ASSERT_EQ(
      CU(cuMemDiscardAndPrefetchBatchAsync)(addresses.data(), sizes.data(), 2, locations.data() + 1,
                                            indexes.data(), 1, 0, stream_),
      CUDA_SUCCESS);
  EXPECT_EQ(resident(0, 2 * kBlock, UVMSIM_HOST), 2 * kBlock);
  uvmsim_counters counters{};
  uvmsim_get_counters(&counters);
  EXPECT_EQ(counters.migrated_bytes_to_host, 0U) << "discarded";
  EXPECT_EQ(counters.discard_calls, 2U) << "a batch is one call";
  EXPECT_EQ(counters.prefetch_calls, 2U);

  for (CUstream legacy : {static_cast<CUstream>(nullptr), CU_STREAM_LEGACY}) {
    EXPECT_EQ(CU(cuMemDiscardBatchAsync)(addresses.data(), sizes.data(), 1, 0, legacy),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemPrefetchBatchAsync)(addresses.data(), sizes.data(), 1, locations.data(),
                                          indexes.data(), 1, 0, legacy),
              CUDA_ERROR_INVALID_VALUE);
  }
  indexes = {1, 2};
  EXPECT_EQ(CU(cuMemPrefetchBatchAsync)(addresses.data(), sizes.data(), 3, locations.data(),
                                        indexes.data(), 2, 0, stream_),
            CUDA_ERROR_INVALID_VALUE);
}

// The form of CUDA 12.8. cuda.h of CUDA 13 maps its name to the newer form.
using CopyBatchWithIndex = CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t,
                                    CUmemcpyAttributes*, size_t*, size_t, size_t*, CUstream);

TEST_F(DriverTest, BatchesOfCopiesMoveTheBytesOfEachAndRefuseTheLegacyStream) {
  std::vector<char> sent(2 * kBlock, 'a');
  std::fill(sent.begin() + kBlock, sent.end(), 'b');
  std::vector<char> received(2 * kBlock);
  const auto address_of = [](void* host) { return reinterpret_cast<CUdeviceptr>(host); };
  std::array<CUdeviceptr, 2> to{managed_ + kBlock, managed_};
  std::array<CUdeviceptr, 2> from{address_of(sent.data()), address_of(sent.data() + kBlock)};
  std::array<size_t, 2> sizes{kBlock, kBlock};
  std::array<CUmemcpyAttributes, 2> attributes{};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  std::array<size_t, 2> indexes{0, 1};
  const auto copy = [&](size_t count, size_t attribute_count, CUstream stream) {
    return CU(cuMemcpyBatchAsync_v2)(to.data(), from.data(), sizes.data(), count, attributes.data(),
                                     indexes.data(), attribute_count, stream);
  };
  ASSERT_EQ(copy(2, 2, stream_), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemcpyDtoH_v2)(received.data(), managed_, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(received.front(), 'b');
  EXPECT_EQ(received[kBlock], 'a');
  EXPECT_EQ(std::count(received.begin(), received.end(), 'a'), static_cast<long>(kBlock));

  EXPECT_EQ(copy(2, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(2, 1, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(0, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(2, 0, stream_), CUDA_ERROR_INVALID_VALUE) << "each copy has attributes";
  EXPECT_EQ(copy(1, 2, stream_), CUDA_ERROR_INVALID_VALUE) << "more attributes than copies";
  indexes = {1, 1};
  EXPECT_EQ(copy(2, 1, stream_), CUDA_ERROR_INVALID_VALUE) << "the first copy has none";
  indexes = {0, 0};
  EXPECT_EQ(copy(2, 2, stream_), CUDA_ERROR_INVALID_VALUE) << "the indexes do not rise";
  indexes = {0, 1};
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  EXPECT_EQ(copy(2, 2, stream_), CUDA_ERROR_INVALID_VALUE);

  auto* copy_with_index =
      reinterpret_cast<CopyBatchWithIndex*>(StandIn::driver().find("cuMemcpyBatchAsync"));
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  const auto failed_copy = [&](CUstream stream) {
    size_t failed = 7;
    EXPECT_EQ(copy_with_index(to.data(), from.data(), sizes.data(), 2, attributes.data(),
                              indexes.data(), 2, &failed, stream),
              CUDA_ERROR_INVALID_VALUE);
    return failed;
  };
  EXPECT_EQ(failed_copy(nullptr), SIZE_MAX) << "no copy is to blame";
  sizes[1] = 5 * kBlock;
  EXPECT_EQ(failed_copy(stream_), 1U) << "beyond the allocation";
}

TEST_F(DriverTest, AccessedByIsListedAndPadded) {
  ASSERT_EQ(CU(cuMemAdvise_v2)(managed_, 4 * kBlock, CU_MEM_ADVISE_SET_ACCESSED_BY, kDevice0),
            CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemAdvise_v2)(managed_, kBlock, CU_MEM_ADVISE_SET_ACCESSED_BY, kHostLocation),
            CUDA_SUCCESS);
  std::array<int, 3> devices{};
  ASSERT_EQ(CU(cuMemRangeGetAttribute)(devices.data(), sizeof devices,
                                       CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed_, 4 * kBlock),
            CUDA_SUCCESS);
  EXPECT_EQ(devices, (std::array<int, 3>{0, CU_DEVICE_INVALID, CU_DEVICE_INVALID}));
  ASSERT_EQ(CU(cuMemRangeGetAttribute)(devices.data(), sizeof devices,
                                       CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed_, kBlock),
            CUDA_SUCCESS);
  EXPECT_EQ(devices, (std::array<int, 3>{CU_DEVICE_CPU, 0, CU_DEVICE_INVALID}));
}

TEST_F(DriverTest, PointerAttributesDescribeTheAllocation) {
  unsigned is_managed = 0;
  unsigned type = 0;
  int ordinal = -1;
  CUdeviceptr start = 0;
  size_t size = 0;
  unsigned long long id = 0;
  const CUdeviceptr inside = managed_ + kBlock + 5;
  std::array attributes{CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
  std::array<void*, 6> outs{&is_managed, &type, &ordinal, &start, &size, &id};
  ASSERT_EQ(CU(cuPointerGetAttributes)(6, attributes.data(), outs.data(), inside), CUDA_SUCCESS);
  EXPECT_EQ(is_managed, 1U);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(start, managed_);
  EXPECT_EQ(size, 4 * kBlock);
  EXPECT_NE(id, 0U);

  int local = 0;
  const auto foreign = reinterpret_cast<CUdeviceptr>(&local);
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, foreign),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuPointerGetAttributes)(6, attributes.data(), outs.data(), foreign), CUDA_SUCCESS);
  EXPECT_EQ(type, 0U);
  EXPECT_EQ(ordinal, CU_DEVICE_INVALID);
}

TEST_F(DriverTest, CopiesAndFillsReachDeviceMemory) {
  CUdeviceptr device = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&device, kBlock), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemsetD32_v2)(device, 0x01020304, 4), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemsetD8_v2)(device + 4, 9, 4), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemsetD16_v2)(device + 8, 0x0506, 2), CUDA_SUCCESS);
  std::array<unsigned, 4> host{};
  ASSERT_EQ(CU(cuMemcpyDtoH_v2)(host.data(), device, sizeof host), CUDA_SUCCESS);
  EXPECT_EQ(host, (std::array<unsigned, 4>{0x01020304, 0x09090909, 0x05060506, 0x01020304}));
  ASSERT_EQ(CU(cuMemcpyAsync)(managed_, device, sizeof host, stream_), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(managed_), host.data(), sizeof host), 0);
  EXPECT_EQ(CU(cuMemcpyDtoH_v2)(host.data(), reinterpret_cast<CUdeviceptr>(host.data()), 4),
            CUDA_ERROR_INVALID_VALUE)
      << "the source is no device memory";
  ASSERT_EQ(CU(cuMemFree_v2)(device), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(device), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTest, MemInfoCountsBothKindsAndExhaustionIsAnError) {
  size_t free_before = 0;
  size_t free_now = 0;
  size_t total = 0;
  ASSERT_EQ(CU(cuMemGetInfo_v2)(&free_before, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, std::size_t{8} << 30);
  CUdeviceptr device = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&device, kBlock), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemPrefetchAsync_v2)(managed_, kBlock, kDevice0, 0, stream_), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemGetInfo_v2)(&free_now, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_before - free_now, 2 * kBlock);
  CUdeviceptr none = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&none, total), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(CU(cuMemFree_v2)(device), CUDA_SUCCESS);
}

TEST_F(DriverTest, ContextsAreAStackPerThread) {
  // An earlier test of the process may have used the device.
  ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2)(1), CUDA_SUCCESS);
  CUcontext second = nullptr;
  CUcontext current = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxPushCurrent_v2)(second), CUDA_SUCCESS);
  CUdevice device = -1;
  ASSERT_EQ(CU(cuCtxGetDevice)(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  ASSERT_EQ(CU(cuCtxPopCurrent_v2)(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, second);
  ASSERT_EQ(CU(cuCtxGetDevice)(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  int active = 0;
  unsigned flags = 0;
  ASSERT_EQ(CU(cuDevicePrimaryCtxGetState)(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(1), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxGetState)(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(1), CUDA_ERROR_INVALID_CONTEXT);

  ASSERT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
  CUdeviceptr none = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&none, kBlock), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext first = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&first, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxSetCurrent)(first), CUDA_SUCCESS);
}

TEST_F(DriverTest, FailuresOnDemandHitImplementedAndUnimplementedNames) {
  ASSERT_EQ(uvmsim_fail_call("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY), UVMSIM_OK);
  ASSERT_EQ(uvmsim_fail_call("cuModuleLoad", 1, CUDA_ERROR_FILE_NOT_FOUND), UVMSIM_OK);
  CUdeviceptr device = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&device, kBlock), CUDA_SUCCESS);
  CUdeviceptr none = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&none, kBlock), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(none, 0U);
  EXPECT_EQ(CU(cuMemFree_v2)(device), CUDA_SUCCESS);
  CUmodule module = nullptr;
  EXPECT_EQ(CU(cuModuleLoad)(&module, "x"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(uvmsim_call_count("cuMemAlloc_v2"), 2U);
}

TEST_F(DriverTest, PoolsAccountForWhatIsTaken) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(CU(cuDeviceGetDefaultMemPool)(&pool, 0), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(CU(cuMemAllocAsync)(&memory, kBlock, stream_), CUDA_SUCCESS);
  cuuint64_t used = 0;
  ASSERT_EQ(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, kBlock);
  ASSERT_EQ(CU(cuMemFreeAsync)(memory, stream_), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, 0U);
  ASSERT_EQ(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, kBlock);
}

TEST_F(DriverTest, APoolGivesNoMoreThanItsMaximum) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.maxSize = 2 * kBlock;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(CU(cuMemPoolCreate)(&pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuMemPoolCreate)(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(CU(cuMemAllocFromPoolAsync)(&memory, 2 * kBlock, pool, stream_), CUDA_SUCCESS);
  CUdeviceptr none = 0;
  EXPECT_EQ(CU(cuMemAllocFromPoolAsync)(&none, 1, pool, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(CU(cuMemFreeAsync)(memory, stream_), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemPoolDestroy)(pool), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemPoolDestroy)(pool), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTest, ListenersToTheLogComeAndGo) {
  const CUlogsCallback listener = [](void*, CUlogLevel, char*, size_t) {};
  CUlogsCallbackHandle first = nullptr;
  CUlogsCallbackHandle second = nullptr;
  EXPECT_EQ(CU(cuLogsRegisterCallback)(nullptr, nullptr, &first), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuLogsRegisterCallback)(listener, nullptr, &first), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuLogsRegisterCallback)(listener, nullptr, &second), CUDA_SUCCESS);
  EXPECT_NE(first, second);
  EXPECT_EQ(CU(cuLogsUnregisterCallback)(first), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuLogsUnregisterCallback)(first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuLogsUnregisterCallback)(second), CUDA_SUCCESS);
}

TEST_F(DriverTest, ErrorsHaveNamesAndTexts) {
  const char* text = nullptr;
  ASSERT_EQ(CU(cuGetErrorName)(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  ASSERT_EQ(CU(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(CU(cuGetErrorName)(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

// ---- cuGetProcAddress

void* proc_address(const char* name, int version) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult result{};
  const CUresult status =
      CU(cuGetProcAddress_v2)(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &result);
  EXPECT_EQ(status == CUDA_SUCCESS, found != nullptr) << name;
  EXPECT_EQ(result,
            found != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
      << name;
  return found;
}

TEST(GetProcAddress, GivesTheFormThatTheVersionHad) {
  struct {
    const char* name;
    int version;
    const char* symbol;
  } const cases[] = {{"cuInit", 12000, "cuInit"},
                     {"cuMemAlloc", 12000, "cuMemAlloc_v2"},
                     {"cuMemGetAddressRange", 12000, "cuMemGetAddressRange_v2"},
                     {"cuMemAdvise", 12010, "cuMemAdvise"},
                     {"cuMemAdvise", 12020, "cuMemAdvise_v2"},
                     {"cuMemAdvise", 13000, "cuMemAdvise_v2"},
                     {"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2"},
                     {"cuMemAdvise_v2", 12020, "cuMemAdvise_v2"},
                     {"cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2"},
                     {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
                     {"cuEventElapsedTime", 12000, "cuEventElapsedTime"},
                     {"cuCtxSynchronize", 12000, "cuCtxSynchronize"},
                     {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
                     {"cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync"},
                     {"cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2"},
                     {"cuMemDiscardBatchAsync", 13000, "cuMemDiscardBatchAsync"},
                     {"cuGetProcAddress", 13000, "cuGetProcAddress_v2"}};
  for (const auto& [name, version, symbol] : cases) {
    EXPECT_EQ(proc_address(name, version), StandIn::driver().find(symbol))
        << name << " " << version;
  }
  EXPECT_EQ(proc_address("cuNoSuchThing", 13000), nullptr);
  EXPECT_EQ(proc_address("cuMemDiscardBatchAsync", 12080), nullptr);
  EXPECT_EQ(proc_address("cuMemcpyBatchAsync", 12020), nullptr);
}

TEST(GetProcAddress, AnswersForEverythingThatPyTorchRequires) {
  for (const char* name :
       {"cuDeviceGet", "cuDeviceGetAttribute", "cuMemGetAddressRange", "cuMemAddressReserve",
        "cuMemRelease", "cuMemMap", "cuMemAddressFree", "cuMemSetAccess", "cuMemUnmap",
        "cuMemCreate", "cuMemGetAllocationGranularity", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle", "cuMemsetD32Async", "cuStreamWriteValue32",
        "cuGetErrorString"}) {
    EXPECT_NE(proc_address(name, 12000), nullptr) << name;
  }
}

}  // namespace
}  // namespace uvmsim::test
