// Device memory that a program maps: reserved addresses, pieces, mappings, access.
#include <cuda.h>

#include <cstdint>
#include <vector>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kPiece = std::size_t{2} << 20;
using Handle = CUmemGenericAllocationHandle;

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

class VirtualMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemAddressReserve)(&reserved_, 4 * kPiece, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(reserved_ % kPiece, 0u);
  }
  void TearDown() override {
    EXPECT_EQ(CU(cuMemAddressFree)(reserved_, 4 * kPiece), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
  }

  static Handle piece_of(std::size_t bytes, int device = 0) {
    Handle handle = 0;
    const CUmemAllocationProp properties = on_device(device);
    EXPECT_EQ(CU(cuMemCreate)(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  static CUresult open_to(int device, CUdeviceptr address, std::size_t bytes,
                          CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc description{};
    description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    description.location.id = device;
    description.flags = flags;
    return CU(cuMemSetAccess)(address, bytes, &description, 1);
  }
  static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(CU(cuMemGetInfo_v2)(&free, &total), CUDA_SUCCESS);
    return free;
  }
  static std::uint32_t word_at(CUdeviceptr address) {
    std::uint32_t word = 0;
    EXPECT_EQ(CU(cuMemcpyDtoH_v2)(&word, address, sizeof word), CUDA_SUCCESS);
    return word;
  }

  CUdeviceptr reserved_ = 0;
};

TEST_F(VirtualMemoryTest, PiecesSideBySideAreOneRange) {
  const std::size_t before = free_bytes();
  for (std::size_t i = 0; i < 3; ++i) {
    const Handle handle = piece_of(kPiece);
    ASSERT_EQ(CU(cuMemMap)(reserved_ + i * kPiece, kPiece, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(open_to(0, reserved_ + i * kPiece, kPiece), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
  }
  EXPECT_EQ(free_bytes(), before - 3 * kPiece) << "a mapped piece lives without its handle";
  const std::vector<std::uint32_t> words(3 * kPiece / 4, 0xABCD);
  ASSERT_EQ(CU(cuMemcpyHtoD_v2)(reserved_, words.data(), 3 * kPiece), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemsetD32_v2)(reserved_ + kPiece - 64, 7, 32), CUDA_SUCCESS);
  EXPECT_EQ(word_at(reserved_ + kPiece - 68), 0xABCDu);
  EXPECT_EQ(word_at(reserved_ + kPiece + 60), 7u);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  ASSERT_EQ(CU(cuMemGetAddressRange_v2)(&base, &size, reserved_ + kPiece), CUDA_SUCCESS);
  EXPECT_EQ(base, reserved_);
  EXPECT_EQ(CU(cuMemFree_v2)(reserved_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAddressFree)(reserved_, 4 * kPiece), CUDA_ERROR_INVALID_VALUE) << "mapped";
  ASSERT_EQ(CU(cuMemUnmap)(reserved_, 3 * kPiece), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(VirtualMemoryTest, APieceShowsTheSameBytesWhereverItIsMapped) {
  const Handle handle = piece_of(kPiece);
  for (const std::size_t i : {0, 2}) {
    ASSERT_EQ(CU(cuMemMap)(reserved_ + i * kPiece, kPiece, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(open_to(0, reserved_ + i * kPiece, kPiece), CUDA_SUCCESS);
  }
  ASSERT_EQ(CU(cuMemsetD32_v2)(reserved_, 5, 1), CUDA_SUCCESS);
  EXPECT_EQ(word_at(reserved_ + 2 * kPiece), 5u);
  ASSERT_EQ(CU(cuMemUnmap)(reserved_, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(word_at(reserved_ + 2 * kPiece), 5u);
  Handle again = 0;
  ASSERT_EQ(CU(cuMemRetainAllocationHandle)(&again,
                                            reinterpret_cast<void*>(reserved_ + 2 * kPiece + 100)),
            CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  ASSERT_EQ(CU(cuMemUnmap)(reserved_ + 2 * kPiece, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VirtualMemoryTest, NewMemoryReadsAsZeros) {
  for (int round = 0; round < 2; ++round) {
    const Handle handle = piece_of(kPiece);
    ASSERT_EQ(CU(cuMemMap)(reserved_, kPiece, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(open_to(0, reserved_, kPiece), CUDA_SUCCESS);
    EXPECT_EQ(word_at(reserved_), 0u);
    ASSERT_EQ(CU(cuMemsetD32_v2)(reserved_, 9, 1), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemUnmap)(reserved_, kPiece), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
  }
}

TEST_F(VirtualMemoryTest, WithoutAccessTheMemoryCannotBeUsed) {
  const Handle handle = piece_of(kPiece);
  ASSERT_EQ(CU(cuMemMap)(reserved_, kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemsetD32_v2)(reserved_, 1, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(open_to(1, reserved_, kPiece), CUDA_SUCCESS);
  unsigned long long flags = 99;
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(CU(cuMemGetAccess)(&flags, &location, reserved_), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  location.id = 1;
  ASSERT_EQ(CU(cuMemGetAccess)(&flags, &location, reserved_), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(open_to(1, reserved_, kPiece, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemsetD32_v2)(reserved_, 1, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuMemUnmap)(reserved_, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryTest, WhatCannotBeIsRefused) {
  const CUmemAllocationProp properties = on_device(0);
  std::size_t granularity = 0;
  ASSERT_EQ(CU(cuMemGetAllocationGranularity)(&granularity, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kPiece);
  CUdeviceptr other = 0;
  EXPECT_EQ(CU(cuMemAddressReserve)(&other, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAddressReserve)(&other, kPiece / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAddressReserve)(&other, kPiece, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAddressFree)(reserved_, kPiece), CUDA_ERROR_INVALID_VALUE);
  Handle handle = 0;
  EXPECT_EQ(CU(cuMemCreate)(&handle, kPiece - 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemCreate)(&handle, std::size_t{1} << 45, &properties, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  const CUmemAllocationProp nowhere = on_device(7);
  EXPECT_EQ(CU(cuMemCreate)(&handle, kPiece, &nowhere, 0), CUDA_ERROR_INVALID_DEVICE);
  handle = piece_of(kPiece);
  EXPECT_EQ(CU(cuMemMap)(reserved_ + 3 * kPiece, 2 * kPiece, 0, handle, 0),
            CUDA_ERROR_INVALID_VALUE)
      << "more than the piece";
  EXPECT_EQ(CU(cuMemMap)(reserved_ + 512, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(reserved_ + 4 * kPiece, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(reserved_, kPiece, 0, handle + 1, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuMemMap)(reserved_, kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemMap)(reserved_, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(open_to(0, reserved_, 2 * kPiece), CUDA_ERROR_INVALID_VALUE) << "more than mapped";
  EXPECT_EQ(CU(cuMemUnmap)(reserved_ + kPiece, kPiece), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CU(cuMemUnmap)(reserved_, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryTest, HandlesForOtherProcessesAreAcceptedAndTheirExportIsRefused) {
  CUmemAllocationProp properties = on_device(0);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  Handle handle = 0;
  ASSERT_EQ(CU(cuMemCreate)(&handle, kPiece, &properties, 0), CUDA_SUCCESS);
  int descriptor = -1;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CU(cuMemExportToShareableHandle)(&descriptor, handle,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(CU(cuMemRelease)(handle), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryTest, MoreAddressesThanMemoryCanBeReserved) {
  std::vector<CUdeviceptr> reserved(20);
  // A sanitizer leaves a program less address space.
  const std::size_t each = std::size_t{UVMSIM_TEST_SANITIZED ? 8 : 90} << 30;
  for (CUdeviceptr& address : reserved)
    ASSERT_EQ(CU(cuMemAddressReserve)(&address, each, 0, 0, 0), CUDA_SUCCESS);
  for (const CUdeviceptr address : reserved)
    EXPECT_EQ(CU(cuMemAddressFree)(address, each), CUDA_SUCCESS);
}

}  // namespace
}  // namespace uvmsim::test
