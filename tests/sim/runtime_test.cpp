// How the runtime interface differs from the driver's: contexts, last errors, launches, entries.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

// Code that nvcc generates calls these functions; no header declares them with these types.
using RegisterFunction = void(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                              dim3*, int*);
using PushConfiguration = unsigned(dim3, dim3, size_t, void*);
using PopConfiguration = cudaError_t(dim3*, dim3*, size_t*, void*);

namespace uvmsim::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(RuntimeTest, TheFirstCallMakesThePrimaryContextCurrent) {
  std::thread([] {
    ASSERT_EQ(RT(cudaSetDevice)(1), cudaSuccess);
    CUcontext context = nullptr;
    ASSERT_EQ(CU(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_NE(context, nullptr);
    CUdevice device = -1;
    ASSERT_EQ(CU(cuCtxGetDevice)(&device), CUDA_SUCCESS);
    EXPECT_EQ(device, 1);
    unsigned flags = 0;
    int active = 0;
    ASSERT_EQ(CU(cuDevicePrimaryCtxGetState)(1, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, 1);
  }).join();
}

TEST(RuntimeTest, ABatchOfCopiesMovesTheBytesOfEach) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(RT(cudaStreamCreate)(&stream), cudaSuccess);
  char* device = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(reinterpret_cast<void**>(&device), 2 * kMiB), cudaSuccess);
  std::vector<char> first(kMiB, 'a');
  std::vector<char> second(kMiB, 'b');
  std::vector<char> received(2 * kMiB);
  void* to[]{device + kMiB, device};
  const void* from[]{first.data(), second.data()};
  const size_t sizes[]{kMiB, kMiB};
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0;
  ASSERT_EQ(RT(cudaMemcpyBatchAsync)(to, from, sizes, 2, &attributes, &index, 1, stream),
            cudaSuccess);
  ASSERT_EQ(RT(cudaMemcpy)(received.data(), device, 2 * kMiB, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(std::string(received.data(), kMiB), std::string(kMiB, 'b'));
  EXPECT_EQ(std::string(received.data() + kMiB, kMiB), std::string(kMiB, 'a'));
  EXPECT_EQ(RT(cudaMemcpyBatchAsync)(to, from, sizes, 2, &attributes, &index, 1, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFree)(device), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
}

TEST(RuntimeTest, TheCurrentDeviceIsTheThreads) {
  ASSERT_EQ(RT(cudaSetDevice)(1), cudaSuccess);
  std::thread([] {
    int device = -1;
    EXPECT_EQ(RT(cudaGetDevice)(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
  EXPECT_EQ(RT(cudaSetDevice)(2), cudaErrorInvalidDevice);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorInvalidDevice);
}

// Destructors of pthread keys run after the destructors of C++'s thread-local objects.
TEST(RuntimeTest, AThreadThatEndsKeepsItsDevice) {
  static int device_at_end = -1;
  pthread_key_t key{};
  ASSERT_EQ(pthread_key_create(&key, [](void*) { RT(cudaGetDevice)(&device_at_end); }), 0);
  std::thread([key] {
    ASSERT_EQ(RT(cudaSetDevice)(1), cudaSuccess);
    ASSERT_EQ(pthread_setspecific(key, &device_at_end), 0);
  }).join();
  EXPECT_EQ(device_at_end, 1);
  EXPECT_EQ(pthread_key_delete(key), 0);
}

TEST(RuntimeTest, RowsOfAPitchedAllocationAreAligned) {
  void* memory = nullptr;
  size_t pitch_bytes = 0;
  ASSERT_EQ(RT(cudaMallocPitch)(&memory, &pitch_bytes, 100, 10), cudaSuccess);
  EXPECT_EQ(pitch_bytes, 512U);
  ASSERT_EQ(RT(cudaMemset)(memory, 1, pitch_bytes * 10), cudaSuccess);
  EXPECT_EQ(RT(cudaFree)(memory), cudaSuccess);
  cudaPitchedPtr cube{};
  ASSERT_EQ(RT(cudaMalloc3D)(&cube, cudaExtent{600, 3, 2}), cudaSuccess);
  EXPECT_EQ(cube.pitch, 1024U);
  EXPECT_EQ(cube.xsize, 600U);
  EXPECT_EQ(cube.ysize, 3U);
  EXPECT_EQ(RT(cudaFree)(cube.ptr), cudaSuccess);
}

TEST(RuntimeTest, AChannelDescriptionHoldsItsArguments) {
  auto* create =
      StandIn::runtime().function<cudaChannelFormatDesc(int, int, int, int, cudaChannelFormatKind)>(
          "cudaCreateChannelDesc");
  const cudaChannelFormatDesc made = create(32, 16, 8, 4, cudaChannelFormatKindFloat);
  EXPECT_EQ(made.x, 32);
  EXPECT_EQ(made.w, 4);
  EXPECT_EQ(made.f, cudaChannelFormatKindFloat);
}

TEST(RuntimeTest, ErrorsHaveNamesAndTexts) {
  EXPECT_STREQ(RT(cudaGetErrorName)(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(RT(cudaGetErrorString)(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(RT(cudaGetErrorName)(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST(RuntimeTest, PropertiesDescribeTheDevice) {
  // In some versions, this name is a macro for another function; the stand-in has the plain one.
  auto* get =
      StandIn::runtime().function<cudaError_t(cudaDeviceProp*, int)>("cudaGetDeviceProperties");
  cudaDeviceProp properties;
  ASSERT_EQ(get(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "UVM Simulated Device");
  EXPECT_EQ(properties.major, 9);
  EXPECT_EQ(properties.minor, 0);
  EXPECT_EQ(properties.multiProcessorCount, 132);
  EXPECT_EQ(properties.totalGlobalMem, std::size_t{8} << 30);
  EXPECT_EQ(properties.concurrentManagedAccess, 1);
  EXPECT_EQ(properties.pageableMemoryAccess, 0);
  cudaDeviceProp other;
  ASSERT_EQ(get(&other, 1), cudaSuccess);
  EXPECT_NE(std::memcmp(&properties.uuid, &other.uuid, sizeof other.uuid), 0);
  EXPECT_NE(properties.pciBusID, other.pciBusID);
}

TEST(RuntimeTest, PointerAttributesTellTheKinds) {
  cudaPointerAttributes attributes;
  int local = 0;
  ASSERT_EQ(RT(cudaPointerGetAttributes)(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(attributes.device, cudaInvalidDeviceId);

  void* memory = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&memory, kMiB), cudaSuccess);
  ASSERT_EQ(RT(cudaPointerGetAttributes)(&attributes, memory), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  EXPECT_EQ(RT(cudaFreeHost)(memory), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFree)(memory), cudaSuccess);

  auto* host_alloc =
      StandIn::runtime().function<cudaError_t(void**, size_t, unsigned)>("cudaHostAlloc");
  ASSERT_EQ(host_alloc(&memory, kMiB, cudaHostAllocPortable), cudaSuccess);
  ASSERT_EQ(RT(cudaPointerGetAttributes)(&attributes, memory), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(attributes.hostPointer, memory);
  EXPECT_EQ(RT(cudaFree)(memory), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFreeHost)(memory), cudaSuccess);
  EXPECT_EQ(RT(cudaFreeHost)(memory), cudaErrorInvalidValue);
  RT(cudaGetLastError)();
}

TEST(RuntimeTest, DriverEntryPointsAreTheStandInDriversOwn) {
  auto* by_version = RT(cudaGetDriverEntryPointByVersion);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  ASSERT_EQ(by_version("cuMemGetAddressRange", &function, 12000, cudaEnableDefault, &result),
            cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, StandIn::driver().find("cuMemGetAddressRange_v2"));
  ASSERT_EQ(by_version("cuNoSuchThing", &function, 12000, cudaEnableDefault, &result), cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
}

TEST(RuntimeTest, AnUnknownKernelIsNamedOnceAndTheSpinKernelTakesTime) {
  auto* register_function = StandIn::runtime().function<RegisterFunction>("__cudaRegisterFunction");
  static const char unknown_stub = 0;
  static const char spin_stub = 0;
  register_function(nullptr, &unknown_stub, nullptr, "_Z10some_thingPfi", -1, nullptr, nullptr,
                    nullptr, nullptr, nullptr);
  register_function(nullptr, &spin_stub, nullptr, "_ZN2at4cuda11spin_kernelEl", -1, nullptr,
                    nullptr, nullptr, nullptr, nullptr);
  auto* launch = StandIn::runtime()
                     .function<cudaError_t(const void*, dim3, dim3, void**, size_t, cudaStream_t)>(
                         "cudaLaunchKernel");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(launch(&unknown_stub, dim3(), dim3(), nullptr, 0, nullptr),
            cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(launch(&unknown_stub, dim3(), dim3(), nullptr, 0, nullptr),
            cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "uvmsim: kernel some_thing(float*, int) cannot run on the simulated device, which has no "
      "code for it\n");
  const std::string text = RT(cudaGetErrorString)(cudaErrorNoKernelImageForDevice);
  EXPECT_TRUE(text.starts_with("no kernel image is available for execution on the device: "));
  EXPECT_NE(text.find("simulated device runs no GPU code"), std::string::npos) << text;
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorNoKernelImageForDevice);

  ASSERT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
  const std::uint64_t start = uvmsim_now_ns();
  std::int64_t cycles = 123456;
  void* arguments[] = {&cycles};
  ASSERT_EQ(launch(&spin_stub, dim3(), dim3(), arguments, 0, nullptr), cudaSuccess);
  ASSERT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
  EXPECT_EQ(uvmsim_now_ns(), start + 123456);
}

TEST(RuntimeTest, TheCallConfigurationCarriesTheStream) {
  auto* push = StandIn::runtime().function<PushConfiguration>("__cudaPushCallConfiguration");
  auto* pop = StandIn::runtime().function<PopConfiguration>("__cudaPopCallConfiguration");
  int stream = 0;
  ASSERT_EQ(push(dim3(1, 2, 3), dim3(4, 5, 6), 7, &stream), 0U);
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  void* out = nullptr;
  ASSERT_EQ(pop(&grid, &block, &shared, &out), cudaSuccess);
  EXPECT_EQ(grid.y, 2U);
  EXPECT_EQ(block.z, 6U);
  EXPECT_EQ(shared, 7U);
  EXPECT_EQ(out, &stream);
}

TEST(RuntimeTest, StreamsAnswerThatTheyDoNotCapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(RT(cudaStreamCreateWithPriority)(&stream, cudaStreamNonBlocking, -3), cudaSuccess);
  int priority = 0;
  unsigned flags = 0;
  int device = -1;
  EXPECT_EQ(RT(cudaStreamGetPriority)(stream, &priority), cudaSuccess);
  EXPECT_EQ(priority, -3);
  EXPECT_EQ(RT(cudaStreamGetFlags)(stream, &flags), cudaSuccess);
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  EXPECT_EQ(RT(cudaStreamGetDevice)(stream, &device), cudaSuccess);
  EXPECT_EQ(device, 0);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(RT(cudaStreamIsCapturing)(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamQuery)(stream), cudaErrorInvalidResourceHandle);
  RT(cudaGetLastError)();
}

TEST(RuntimeTest, HostFunctionsRunBeforeTheCallReturns) {
  int calls = 0;
  ASSERT_EQ(RT(cudaLaunchHostFunc)(
                nullptr, [](void* out) { ++*static_cast<int*>(out); }, &calls),
            cudaSuccess);
  EXPECT_EQ(calls, 1);
}

TEST(RuntimeTest, NoPlaceForTheAnswerIsAnInvalidValue) {
  const cudaError_t answers[] = {
      RT(cudaDriverGetVersion)(nullptr),
      RT(cudaRuntimeGetVersion)(nullptr),
      RT(cudaGetDeviceProperties)(nullptr, 0),
      RT(cudaDeviceGetAttribute)(nullptr, cudaDevAttrWarpSize, 0),
      RT(cudaDeviceGetP2PAttribute)(nullptr, cudaDevP2PAttrAccessSupported, 0, 1),
      RT(cudaDeviceCanAccessPeer)(nullptr, 0, 1),
      RT(cudaDeviceGetByPCIBusId)(nullptr, nullptr),
      RT(cudaChooseDevice)(nullptr, nullptr),
      RT(cudaGetDeviceFlags)(nullptr),
      RT(cudaDeviceGetLimit)(nullptr, cudaLimitStackSize),
      RT(cudaDeviceGetCacheConfig)(nullptr),
      RT(cudaFuncGetName)(nullptr, nullptr),
      RT(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(nullptr, nullptr, 64, 0),
      RT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(nullptr, nullptr, 64, 0, 0),
      RT(cudaStreamGetFlags)(nullptr, nullptr),
      RT(cudaStreamGetPriority)(nullptr, nullptr),
      RT(cudaStreamGetId)(nullptr, nullptr),
      RT(cudaStreamGetDevice)(nullptr, nullptr),
      RT(cudaFuncGetAttributes)(nullptr, nullptr),
      RT(cudaMemRangeGetAttributes)(nullptr, nullptr, nullptr, 1, nullptr, 0),
  };
  for (std::size_t i = 0; i < std::size(answers); ++i)
    EXPECT_EQ(answers[i], cudaErrorInvalidValue) << "answer " << i;
  RT(cudaGetLastError)();
}

TEST(RuntimeTest, WhatIsNoLimitNorFlagIsAnInvalidValue) {
  size_t value = 0;
  EXPECT_EQ(RT(cudaDeviceGetLimit)(&value, static_cast<cudaLimit>(99)), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaDeviceSetLimit)(static_cast<cudaLimit>(99), 1), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaSetDeviceFlags)(~0U), cudaErrorInvalidValue);
  void* memory = nullptr;
  ASSERT_EQ(RT(cudaMallocManaged)(&memory, 1, cudaMemAttachGlobal), cudaSuccess);
  int read_mostly = 0;
  void* outs[] = {&read_mostly};
  size_t sizes[] = {sizeof read_mostly};
  cudaMemRangeAttribute attributes[] = {cudaMemRangeAttributeReadMostly};
  const auto ask = [&](size_t count) {
    return RT(cudaMemRangeGetAttributes)(outs, sizes, attributes, count, memory, 1);
  };
  EXPECT_EQ(ask(1), cudaSuccess);
  EXPECT_EQ(ask(0), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFree)(memory), cudaSuccess);
  RT(cudaGetLastError)();
}

TEST(RuntimeTest, WhatADestroyedPoolGaveIsNoneOfTheNextOnes) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(RT(cudaMemPoolCreate)(&pool, &properties), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(RT(cudaMallocFromPoolAsync)(&memory, kMiB, pool, nullptr), cudaSuccess);
  ASSERT_EQ(RT(cudaMemPoolDestroy)(pool), cudaSuccess);
  ASSERT_EQ(RT(cudaMemPoolCreate)(&pool, &properties), cudaSuccess);
  ASSERT_EQ(RT(cudaFreeAsync)(memory, nullptr), cudaSuccess);
  std::uint64_t used = 1;
  ASSERT_EQ(RT(cudaMemPoolGetAttribute)(pool, cudaMemPoolAttrUsedMemCurrent, &used), cudaSuccess);
  EXPECT_EQ(used, 0U);
  ASSERT_EQ(RT(cudaMemPoolDestroy)(pool), cudaSuccess);
}

TEST(RuntimeTest, APoolGivesNoMoreThanItsMaximum) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  properties.maxSize = 8 * kMiB;
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(RT(cudaMemPoolCreate)(&pool, &properties), cudaSuccess);
  void* blocks[2] = {};
  for (void*& block : blocks)
    ASSERT_EQ(RT(cudaMallocFromPoolAsync)(&block, 4 * kMiB, pool, nullptr), cudaSuccess);
  void* none = nullptr;
  EXPECT_EQ(RT(cudaMallocFromPoolAsync)(&none, 1, pool, nullptr), cudaErrorMemoryAllocation);
  RT(cudaGetLastError)();
  ASSERT_EQ(RT(cudaFreeAsync)(blocks[0], nullptr), cudaSuccess);
  ASSERT_EQ(RT(cudaMallocFromPoolAsync)(&blocks[0], 4 * kMiB, pool, nullptr), cudaSuccess);
  for (void* block : blocks) ASSERT_EQ(RT(cudaFreeAsync)(block, nullptr), cudaSuccess);
  ASSERT_EQ(RT(cudaMemPoolDestroy)(pool), cudaSuccess);
}

TEST(RuntimeTest, AnArrayKeepsTheRowsThatAreCopiedIntoIt) {
  const cudaChannelFormatDesc pairs{16, 16, 0, 0, cudaChannelFormatKindUnsigned};
  cudaArray_t array = nullptr;
  ASSERT_EQ(RT(cudaMallocArray)(&array, &pairs, 10, 4, 0), cudaSuccess);
  std::vector<unsigned char> rows(4 * 64);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<unsigned char>(i);
  ASSERT_EQ(RT(cudaMemcpy2DToArray)(array, 0, 0, rows.data(), 64, 40, 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  std::vector<unsigned char> part(2 * 8);
  ASSERT_EQ(RT(cudaMemcpy2DFromArray)(part.data(), 8, array, 4, 2, 8, 2, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(std::memcmp(part.data(), &rows[2 * 64 + 4], 8), 0);
  EXPECT_EQ(std::memcmp(part.data() + 8, &rows[3 * 64 + 4], 8), 0);
  cudaExtent extent{};
  cudaChannelFormatDesc format{};
  ASSERT_EQ(RT(cudaArrayGetInfo)(&format, &extent, nullptr, array), cudaSuccess);
  EXPECT_EQ(extent.width, 10u);
  EXPECT_EQ(extent.height, 4u);
  EXPECT_EQ(format.y, 16);
  EXPECT_EQ(RT(cudaMemcpy2DToArray)(array, 4, 0, rows.data(), 64, 40, 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue)
      << "beyond the row's end";
  EXPECT_EQ(RT(cudaFreeArray)(array), cudaSuccess);
  EXPECT_EQ(RT(cudaFreeArray)(array), cudaErrorInvalidValue);
  const cudaChannelFormatDesc triples{8, 8, 8, 0, cudaChannelFormatKindUnsigned};
  EXPECT_EQ(RT(cudaMallocArray)(&array, &triples, 10, 4, 0), cudaErrorInvalidValue);
}

TEST(RuntimeTest, TwoDimensionalCopiesKeepTheirPitches) {
  void* device = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&device, 64), cudaSuccess);
  ASSERT_EQ(RT(cudaMemset)(device, 0xee, 64), cudaSuccess);
  const std::vector<char> from{1, 2, 9, 3, 4, 9};
  ASSERT_EQ(RT(cudaMemcpy2D)(device, 4, from.data(), 3, 2, 2, cudaMemcpyHostToDevice), cudaSuccess);
  std::vector<unsigned char> to(8);
  ASSERT_EQ(RT(cudaMemcpy)(to.data(), device, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(to, (std::vector<unsigned char>{1, 2, 0xee, 0xee, 3, 4, 0xee, 0xee}));
  EXPECT_EQ(RT(cudaMemcpy)(to.data(), device, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  RT(cudaGetLastError)();
  EXPECT_EQ(RT(cudaFree)(device), cudaSuccess);
}

}  // namespace
}  // namespace uvmsim::test
