// How uvmalloc handles differences between HIP and CUDA. The stand-in is as odd as the modelled
// library. Each test has its own process: machine, version and environment are chosen once.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>

#include <string>

#include "allocator/interface.hpp"
#include "runtime/hip/vendor.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

#undef hipGetDeviceProperties

namespace uvm {
namespace {

constexpr int kNewNumbers = 60000000;
constexpr int kStrictCaptures = 70000000;
constexpr int kHasDiscard = 71400000;

class HipDifferences : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::on_real_device()) GTEST_SKIP() << "a real machine is of one kind";
  }
  // Finds a function in the library that the runtime uses.
  template <class Function>
  static Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(hip::load_driver().handle, name));
  }
  static int version() {
    int version = 0;
    EXPECT_EQ(find<hipError_t(int*)>("hipDriverGetVersion")(&version), hipSuccess);
    return version;
  }
  static DeviceDescription describe(const DeviceRuntime& runtime) {
    DeviceDescription description;
    EXPECT_TRUE(runtime.describe(0, &description).ok());
    return description;
  }
  static Configuration configuration() {
    Configuration out;
    out.budget_bytes = 256 * kMiB;
    return out;
  }
  static std::string why_not_made() {
    try {
      CachingManagedAllocator allocator(testing::open("hip"), configuration());
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }
  // Begins a capture of the calling thread.
  static hipStream_t capture(hipStreamCaptureMode mode) {
    hipStream_t stream = nullptr;
    EXPECT_EQ(find<hipError_t(hipStream_t*, unsigned)>("hipStreamCreateWithFlags")(
                  &stream, hipStreamNonBlocking),
              hipSuccess);
    EXPECT_EQ(
        find<hipError_t(hipStream_t, hipStreamCaptureMode)>("hipStreamBeginCapture")(stream, mode),
        hipSuccess);
    return stream;
  }
  static hipError_t end(hipStream_t stream) {
    hipGraph_t graph = nullptr;
    return find<hipError_t(hipStream_t, hipGraph_t*)>("hipStreamEndCapture")(stream, &graph);
  }
  static std::uint64_t calls(const char* name) {
    auto* count = reinterpret_cast<std::uint64_t (*)(const char*)>(
        dlsym(testing::simulator(), "uvmsim_call_count"));
    return count(name);
  }
};

// ---- where pages migrate

TEST_F(HipDifferences, PagesMigrateWherePageableMemoryAccessSaysSo) {
  const DeviceCapabilities can = describe(*testing::open("hip")).capabilities;
  EXPECT_TRUE(can.migrates_on_fault);
  EXPECT_TRUE(can.concurrent_managed_access);
}

TEST_F(HipDifferences, WithoutXnackPagesStayWhateverConcurrentManagedAccessSays) {
  setenv("HSA_XNACK", "0", 1);
  const DeviceDescription device = describe(*testing::open("hip"));
  EXPECT_FALSE(device.capabilities.migrates_on_fault);
  EXPECT_TRUE(device.capabilities.concurrent_managed_access)
      << "it says only that the calls are there";
  EXPECT_FALSE(device.capabilities.discard);
}

TEST_F(HipDifferences, WhereXnackIsOffOneLineSaysSoAndNoManagedMemoryIsAllocated) {
  unsetenv("HSA_XNACK");
  EXPECT_EQ(why_not_made(),
            "device 0 (UVM Simulated Device) is not used: its pages do not migrate on a fault: "
            "XNACK is off, or the device has none "
            "(HSA_XNACK=1 switches it on from MI200 on; RDNA has none)");
  EXPECT_EQ(calls("hipMallocManaged"), 0u);
}

TEST_F(HipDifferences, ACardThatHasNoXnackIsNotUsedWhateverTheVariableSays) {
  setenv("UVMSIM_PROFILE", "discrete", 1);
  EXPECT_NE(why_not_made().find("XNACK is off"), std::string::npos);
  EXPECT_EQ(calls("hipMallocManaged"), 0u);
}

// ---- numbers that depend on the version

TEST_F(HipDifferences, KindsOfMemoryAreReadByTheVersionThatRuns) {
  auto runtime = testing::open("hip");
  void* device = nullptr;
  void* host = nullptr;
  void* managed = nullptr;
  ASSERT_EQ(find<hipError_t(void**, size_t)>("hipMalloc")(&device, 4096), hipSuccess);
  ASSERT_EQ(find<hipError_t(void**, size_t, unsigned)>("hipHostMalloc")(&host, 4096, 0),
            hipSuccess);
  ASSERT_TRUE(runtime->allocate_managed(0, 4096, &managed).ok());
  unsigned type = 9;
  auto* ask =
      find<hipError_t(void*, hipPointer_attribute, hipDeviceptr_t)>("hipPointerGetAttribute");
  ASSERT_EQ(ask(&type, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, host), hipSuccess);
  EXPECT_EQ(type, version() >= kNewNumbers ? 1u : 0u) << "the library's own number";
  for (auto [address, kind] : {std::pair{device, PointerKind::kDevice},
                               {host, PointerKind::kHost},
                               {managed, PointerKind::kManaged}}) {
    PointerAttributes attributes;
    EXPECT_TRUE(runtime->pointer_attributes(address, &attributes).ok());
    EXPECT_EQ(attributes.kind, kind);
    EXPECT_EQ(attributes.device, 0);
  }
  EXPECT_TRUE(runtime->free_managed(0, managed).ok());
}

TEST_F(HipDifferences, TheNumbersOfMemoryTypesChangedInVersionSix) {
  EXPECT_EQ(hip::kind_of_memory(0, 50700000), PointerKind::kHost);
  EXPECT_EQ(hip::kind_of_memory(1, 50700000), PointerKind::kDevice);
  EXPECT_EQ(hip::kind_of_memory(2, 50700000), PointerKind::kUnknown);
  EXPECT_EQ(hip::kind_of_memory(0, 60000000), PointerKind::kUnknown);
  EXPECT_EQ(hip::kind_of_memory(1, 60000000), PointerKind::kHost);
  EXPECT_EQ(hip::kind_of_memory(2, 60000000), PointerKind::kDevice);
}

TEST_F(HipDifferences, BothLayoutsOfPropertiesSayTheSame) {
  alignas(8) std::byte old_layout[792];
  ASSERT_EQ(find<hipError_t(void*, int)>("hipGetDeviceProperties")(old_layout, 0), hipSuccess);
  const auto old_at = [&](std::size_t offset) {
    return *reinterpret_cast<const int*>(old_layout + offset);
  };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(old_layout + 396)), "gfx942:sramecc+:xnack+");
  EXPECT_EQ(old_at(784), 1) << "pageableMemoryAccess";
  EXPECT_EQ(old_at(652), 0) << "integrated";
  auto* get = find<hipError_t(hipDeviceProp_tR0600*, int)>("hipGetDevicePropertiesR0600");
  ASSERT_EQ(get != nullptr, version() >= kNewNumbers);
  if (get == nullptr) return;
  hipDeviceProp_tR0600 properties;
  ASSERT_EQ(get(&properties, 0), hipSuccess);
  EXPECT_EQ(std::string(properties.gcnArchName), "gfx942:sramecc+:xnack+");
  EXPECT_EQ(properties.pageableMemoryAccess, 1);
  EXPECT_EQ(properties.totalGlobalMem, *reinterpret_cast<const size_t*>(old_layout + 256));
}

TEST_F(HipDifferences, DiscardIsUsedWhereTheVersionHasIt) {
  auto runtime = testing::open("hip");
  EXPECT_EQ(describe(*runtime).capabilities.discard, version() >= kHasDiscard);
  void* memory = nullptr;
  StreamHandle stream = nullptr;
  ASSERT_TRUE(runtime->allocate_managed(0, 4 * kMiB, &memory).ok());
  ASSERT_TRUE(runtime->create_stream(0, &stream).ok());
  const RuntimeStatus status = runtime->discard(0, memory, 2 * kMiB, stream);
  EXPECT_EQ(status.error,
            version() >= kHasDiscard ? RuntimeError::kNone : RuntimeError::kNotSupported);
  EXPECT_TRUE(runtime->free_managed(0, memory).ok());
}

// ---- memory

TEST_F(HipDifferences, MoreFreeThanTotalIsLegalOnAnIntegratedDevice) {
  setenv("UVMSIM_PROFILE", "integrated", 1);
  setenv("UVMSIM_CAPACITY", "64MiB", 1);
  auto runtime = testing::open("hip");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(find<hipError_t(size_t*, size_t*)>("hipMemGetInfo")(&free_bytes, &total_bytes),
            hipSuccess);
  ASSERT_GT(free_bytes, total_bytes) << "what the library says";
  MemoryFigures figures;
  ASSERT_TRUE(runtime->memory_figures(0, &figures).ok());
  EXPECT_EQ(figures.free_bytes, free_bytes);
  EXPECT_EQ(figures.total_bytes, free_bytes);
}

TEST_F(HipDifferences, PrefetchesAreSentOnAThreadOfTheirOwn) {
  EXPECT_TRUE(describe(*testing::open("hip")).capabilities.prefetch_blocks);
  CachingManagedAllocator allocator(testing::open("hip"), configuration());
  auto* block = static_cast<char*>(allocator.allocate(Facade::kHost, 0, 8 * kMiB));
  block[0] = 1;
  ASSERT_NE(allocator.move(block, {Place::host(), Place::device(0), 0, nullptr, true}), nullptr);
  EXPECT_EQ(allocator.free(block), FreeResult::kFreed);
  EXPECT_EQ(allocator.inspection().hints().of(HintKind::kPrefetch).failed, 0u);
}

TEST_F(HipDifferences, MemoryOfADeviceMayBeCoarseGrainedAndThatOfTheHostIsNot) {
  CachingManagedAllocator allocator(testing::open("hip"), configuration());
  allocator.allocate(Facade::kHost, 0, 8 * kMiB);
  allocator.allocate(Facade::kPinned, 0, 8 * kMiB);
  EXPECT_EQ(allocator.inspection().runtime_calls().count("allow_coarse_grain"), 0u);
  void* block = allocator.allocate(Facade::kDevice, 0, 8 * kMiB);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(allocator.inspection().runtime_calls().at("allow_coarse_grain"), 1u) << "once a span";
  EXPECT_TRUE(allocator.inspection().runtime().allow_coarse_grain(0, block, 8 * kMiB).ok());
}

TEST_F(HipDifferences, AnIntegratedDeviceHasNoCoarseGrain) {
  setenv("UVMSIM_PROFILE", "integrated", 1);
  EXPECT_FALSE(describe(*testing::open("hip")).capabilities.coarse_grain);
}

// ---- captures

TEST_F(HipDifferences, BesideACaptureRequestsAreServedFromTheCacheAndAdviceWaits) {
  CachingManagedAllocator allocator(testing::open("hip"), configuration());
  void* warm = allocator.allocate(Facade::kDevice, 0, 8 * kMiB);
  void* moved = allocator.allocate(Facade::kHost, 0, 8 * kMiB);
  allocator.free(warm);
  const hipStream_t stream = capture(hipStreamCaptureModeGlobal);
  EXPECT_NE(allocator.allocate(Facade::kDevice, 0, 8 * kMiB), nullptr) << "from the cache";
  const std::uint64_t sent = allocator.inspection().hints().of(HintKind::kAdvise).sent;
  ASSERT_NE(allocator.move(moved, {Place::host(), Place::device(0), 0, nullptr, true}), nullptr);
  EXPECT_EQ(allocator.inspection().hints().of(HintKind::kAdvise).failed, 0u);
  if (version() >= kStrictCaptures) {
    EXPECT_EQ(allocator.inspection().hints().of(HintKind::kAdvise).sent, sent) << "it is put off";
  }
  EXPECT_EQ(end(stream), hipSuccess) << "the capture was not disturbed";
  ASSERT_NE(allocator.move(moved, {Place::device(0), Place::host(), 0, nullptr, true}), nullptr);
  EXPECT_GT(allocator.inspection().hints().of(HintKind::kAdvise).sent, sent)
      << "with the first hints after it";
  EXPECT_EQ(allocator.inspection().hints().of(HintKind::kAdvise).failed, 0u);
}

TEST_F(HipDifferences, ARefusalBesideACaptureIsNoShortageAndNamesTheCapture) {
  auto runtime = testing::open("hip");
  void* memory = nullptr;
  ASSERT_TRUE(runtime->allocate_managed(0, 4 * kMiB, &memory).ok());
  const hipStream_t stream = capture(hipStreamCaptureModeGlobal);
  void* more = nullptr;
  const RuntimeStatus allocation = runtime->allocate_managed(0, 4096, &more);
  const RuntimeStatus advice =
      runtime->advise(0, memory, 4 * kMiB, Advice::kSetAccessedBy, Place::device(0));
  const bool refused = version() >= kStrictCaptures;
  EXPECT_EQ(allocation.error, refused ? RuntimeError::kCapture : RuntimeError::kNone);
  EXPECT_EQ(advice.error, refused ? RuntimeError::kCapture : RuntimeError::kNone);
  if (refused) {
    EXPECT_EQ(allocation.text(), "hipMallocManaged: hipErrorStreamCaptureUnsupported (900)");
  }
  EXPECT_EQ(end(stream), hipSuccess);
}

TEST_F(HipDifferences, BesideARelaxedCaptureMemoryIsAllocated) {
  auto runtime = testing::open("hip");
  const hipStream_t stream = capture(hipStreamCaptureModeRelaxed);
  void* memory = nullptr;
  EXPECT_TRUE(runtime->allocate_managed(0, 4096, &memory).ok());
  EXPECT_EQ(end(stream), hipSuccess);
}

// ---- the library

TEST_F(HipDifferences, ALibraryThatIsMappedComesBeforeANewerOne) {
  // Opens the library by its path, because the system may have such a library, too.
  const std::string folder = std::getenv("LD_LIBRARY_PATH");
  void* mapped = nullptr;
  for (const char* older : {"/libamdhip64.so.6", "/libamdhip64.so.5"}) {
    if (mapped == nullptr) mapped = dlopen((folder + older).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(hip::load_driver().handle, mapped);
  EXPECT_LT(version(), kStrictCaptures);
  EXPECT_EQ(testing::open("hip")->device_count(), 1);
}

TEST_F(HipDifferences, AForeignThreadKeepsItsDevice) {
  setenv("UVMSIM_DEVICES", "2", 1);
  auto runtime = testing::open("hip");
  auto* get = find<hipError_t(int*)>("hipGetDevice");
  int device = -1;
  ASSERT_EQ(get(&device), hipSuccess);
  ASSERT_EQ(device, 0);
  void* memory = nullptr;
  ASSERT_TRUE(runtime->allocate_managed(1, 4096, &memory).ok());
  ASSERT_EQ(get(&device), hipSuccess);
  EXPECT_EQ(device, 0) << "push and pop would have left it on 1";
  PointerAttributes attributes;
  ASSERT_TRUE(runtime->pointer_attributes(memory, &attributes).ok());
  EXPECT_EQ(attributes.device, 1);
}

TEST_F(HipDifferences, WithoutADeviceTheReasonIsSaid) {
  setenv("UVMSIM_DEVICES", "0", 1);
  const RuntimeChoice choice = open_runtime("hip");
  EXPECT_EQ(choice.runtime, nullptr);
  EXPECT_EQ(choice.reason, "hip: no HIP device is visible");
}

}  // namespace
}  // namespace uvm
