// The stand-ins for HIP's library, as programs use them: names, versions, errors, contexts.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <fstream>
#include <map>
#include <string>
#include <thread>

#include <uvmalloc/sim/uvmsim.h>

#undef hipGetDeviceProperties

namespace uvmsim::test {
namespace {

class HipLibrary {
 public:
  explicit HipLibrary(const std::string& file)
      : handle_(dlopen((std::string(UVMSIM_TEST_LIBRARY_DIR "/hip/") + file).c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  void* find(const std::string& name) const { return dlsym(handle_, name.c_str()); }
  void* find(const std::string& name, const std::string& node) const {
    return dlvsym(handle_, name.c_str(), ("hip_" + node).c_str());
  }
  template <class... Arguments>
  hipError_t call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<hipError_t (*)(Arguments...)>(find(name))(arguments...);
  }

 private:
  void* handle_;
};

const HipLibrary& newest() {
  static const HipLibrary library("libamdhip64.so.7");
  return library;
}

// Returns the names, each with the version that introduced it, as 100 * major + minor.
std::map<std::string, std::string> listed() {
  std::ifstream stream(UVMSIM_TEST_HIP_SYMBOLS);
  std::map<std::string, std::string> names;
  for (std::string version, name; stream >> version >> name;) names[name] = version;
  return names;
}

int number_of(const std::string& version) {
  const std::size_t dot = version.find('.');
  return 100 * std::stoi(version.substr(0, dot)) + std::stoi(version.substr(dot + 1));
}

struct Version {
  const char* file;
  int newest_node;
  int number;
};

class HipVersions : public ::testing::TestWithParam<Version> {};

TEST_P(HipVersions, ALibraryHasTheNamesOfItsTimeUnderTheirNodes) {
  const HipLibrary library(GetParam().file);
  const auto names = listed();
  ASSERT_EQ(names.size(), 519u);
  for (const auto& [name, node] : names) {
    const bool expected = number_of(node) <= GetParam().newest_node;
    EXPECT_EQ(library.find(name, node) != nullptr, expected) << name;
    EXPECT_EQ(library.find(name) != nullptr, expected) << name;
  }
}

TEST_P(HipVersions, ALibraryTellsItsVersion) {
  int version = 0;
  EXPECT_EQ(HipLibrary(GetParam().file).call("hipRuntimeGetVersion", &version), hipSuccess);
  EXPECT_EQ(version, GetParam().number);
}

INSTANTIATE_TEST_SUITE_P(All, HipVersions,
                         ::testing::Values(Version{"libamdhip64.so.5", 502, 50221153},
                                           Version{"libamdhip64.so.6", 604, 60443483},
                                           Version{"libamdhip64.so.7", 715, 71526333},
                                           Version{"libamdhip64.so", 715, 71526333}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.number) +
                                  (std::string(tested.param.file) == "libamdhip64.so" ? "_bare"
                                                                                      : "");
                         });

TEST(HipStandIn, ANameThatIsNotImplementedIsCountedAndSaysSo) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest().call("hipModuleUnload", static_cast<hipModule_t>(nullptr)),
            hipErrorNotSupported);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "uvmsim: hipModuleUnload is not implemented by the simulated device (returned \"not "
            "supported\")\n");
  EXPECT_EQ(uvmsim_call_count("hipModuleUnload"), 1u);
}

TEST(HipStandIn, NotReadyIsNoLastErrorAndOthersAreReadOnce) {
  EXPECT_EQ(newest().call("hipSetDevice", 99), hipErrorInvalidDevice);
  EXPECT_EQ(newest().call("hipPeekAtLastError"), hipErrorInvalidDevice);
  EXPECT_EQ(newest().call("hipGetLastError"), hipErrorInvalidDevice);
  EXPECT_EQ(newest().call("hipGetLastError"), hipSuccess);
  ASSERT_EQ(uvmsim_fail_call("hipStreamQuery", 1, hipErrorNotReady), 0);
  EXPECT_EQ(newest().call("hipStreamQuery", static_cast<hipStream_t>(nullptr)), hipErrorNotReady);
  EXPECT_EQ(newest().call("hipGetLastError"), hipSuccess);
}

TEST(HipStandIn, ErrorsHaveTheirNames) {
  auto* name = reinterpret_cast<const char* (*)(hipError_t)>(newest().find("hipGetErrorName"));
  EXPECT_STREQ(name(hipErrorOutOfMemory), "hipErrorOutOfMemory");
  EXPECT_STREQ(name(hipErrorStreamCaptureUnsupported), "hipErrorStreamCaptureUnsupported");
  EXPECT_NE(name(static_cast<hipError_t>(54321)), nullptr);
}

// The modelled library behaves in this odd way, too.
TEST(HipStandIn, WhatIsPoppedDoesNotRestoreTheDevice) {
  std::thread([] {
    int device = -1;
    hipCtx_t second = nullptr;
    ASSERT_EQ(newest().call("hipGetDevice", &device), hipSuccess);
    ASSERT_EQ(device, 0) << "a thread starts there";
    ASSERT_EQ(newest().call("hipDevicePrimaryCtxRetain", &second, 1), hipSuccess);
    ASSERT_EQ(newest().call("hipCtxPushCurrent", second), hipSuccess);
    ASSERT_EQ(newest().call("hipCtxPopCurrent", static_cast<hipCtx_t*>(nullptr)), hipSuccess);
    ASSERT_EQ(newest().call("hipGetDevice", &device), hipSuccess);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(newest().call("hipCtxPopCurrent", static_cast<hipCtx_t*>(nullptr)),
              hipErrorInvalidContext);
    EXPECT_EQ(newest().call("hipCtxSynchronize"), hipErrorNotSupported);
    EXPECT_EQ(newest().call("hipDeviceSynchronize"), hipSuccess);
  }).join();
}

TEST(HipStandIn, SettingAContextBackRestoresTheDevice) {
  std::thread([] {
    int device = -1;
    hipCtx_t before = nullptr;
    hipCtx_t second = nullptr;
    ASSERT_EQ(newest().call("hipCtxGetCurrent", &before), hipSuccess);
    ASSERT_EQ(newest().call("hipDevicePrimaryCtxRetain", &second, 1), hipSuccess);
    ASSERT_EQ(newest().call("hipCtxSetCurrent", second), hipSuccess);
    ASSERT_EQ(newest().call("hipGetDevice", &device), hipSuccess);
    EXPECT_EQ(device, 1);
    ASSERT_EQ(newest().call("hipCtxSetCurrent", before), hipSuccess);
    ASSERT_EQ(newest().call("hipGetDevice", &device), hipSuccess);
    EXPECT_EQ(device, 0);
  }).join();
}

TEST(HipStandIn, HintsAreCheckedAsTheModelledLibraryDoes) {
  void* memory = nullptr;
  ASSERT_EQ(
      newest().call("hipMallocManaged", &memory, size_t{4} << 20, unsigned{hipMemAttachGlobal}),
      hipSuccess);
  const auto advise = [&](const void* address, size_t bytes, int advice, int device) {
    return newest().call("hipMemAdvise", address, bytes, static_cast<hipMemoryAdvise>(advice),
                         device);
  };
  const auto prefetch = [&](const void* address, size_t bytes, int device) {
    return newest().call("hipMemPrefetchAsync", address, bytes, device,
                         static_cast<hipStream_t>(nullptr));
  };
  const void* const address = memory;
  EXPECT_EQ(advise(address, 4 << 20, hipMemAdviseSetAccessedBy, 0), hipSuccess);
  EXPECT_EQ(advise(address, 4 << 20, hipMemAdviseSetCoarseGrain, 0), hipSuccess);
  EXPECT_EQ(advise(address, 4 << 20, hipMemAdviseSetAccessedBy, 9), hipErrorInvalidDevice);
  EXPECT_EQ(advise(address, 4 << 20, hipMemAdviseSetReadMostly, 9), hipSuccess)
      << "its device counts for nothing";
  EXPECT_EQ(advise(address, 8 << 20, hipMemAdviseSetAccessedBy, 0), hipErrorInvalidValue);
  EXPECT_EQ(prefetch(address, 4 << 20, 0), hipSuccess);
  EXPECT_EQ(prefetch(address, 4 << 20, hipCpuDeviceId), hipSuccess);
  EXPECT_EQ(prefetch(address, 4 << 20, 9), hipErrorInvalidDevice);
  EXPECT_EQ(prefetch(address, 8 << 20, 0), hipErrorInvalidValue);
  int local = 0;
  EXPECT_EQ(prefetch(&local, 4, 0), hipErrorNotSupported) << "without XNACK";
  EXPECT_EQ(newest().call("hipFree", memory), hipSuccess);
  EXPECT_EQ(newest().call("hipFree", static_cast<void*>(&local)), hipErrorInvalidValue);
  EXPECT_EQ(newest().call("hipMallocManaged", &memory, size_t{0}, unsigned{hipMemAttachGlobal}),
            hipErrorInvalidValue);
}

TEST(HipStandIn, EntryPointsAreFoundByNameWithTheLayoutOfTheVersion) {
  const auto find = [](const char* name, int version, hipDriverProcAddressQueryResult* result) {
    void* found = nullptr;
    (void)newest().call("hipGetProcAddress", name, &found, version, std::uint64_t{0}, result);
    return found;
  };
  hipDriverProcAddressQueryResult result{};
  EXPECT_EQ(find("hipMalloc", 600, &result), newest().find("hipMalloc"));
  EXPECT_EQ(result, HIP_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(find("hipGetDeviceProperties", 500, &result), newest().find("hipGetDeviceProperties"));
  EXPECT_EQ(find("hipGetDeviceProperties", 600, &result),
            newest().find("hipGetDevicePropertiesR0600"));
  EXPECT_EQ(find("hipNothing", 600, &result), nullptr);
  EXPECT_EQ(result, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

}  // namespace
}  // namespace uvmsim::test
