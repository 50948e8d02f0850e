// Modules, libraries and their functions: images of code that the simulated device cannot read.
#include <cuda.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

class ModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
  }
  void TearDown() override { CU(cuDevicePrimaryCtxRelease_v2)(0); }

  static CUresult launch(CUfunction function) {
    void* arguments[] = {nullptr};
    return CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  }
  static constexpr const char* kImage = ".version 8.0";
};

TEST_F(ModuleTest, ALaunchWithoutCodeNamesTheFunctionOnceAndFailsLikeAMissingImage) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(CU(cuModuleLoadData)(&module, kImage), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&function, module, "a_kernel_of_nobody"), CUDA_SUCCESS);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(launch(function), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(launch(function), CUDA_ERROR_NO_BINARY_FOR_GPU);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a_kernel_of_nobody"), std::string::npos) << said;
  EXPECT_EQ(said.find("a_kernel_of_nobody"), said.rfind("a_kernel_of_nobody"));
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
}

TEST_F(ModuleTest, ANameOfCIsPrintedAsItIs) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(CU(cuModuleLoadData)(&module, kImage), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&function, module, "d"), CUDA_SUCCESS);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(launch(function), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "uvmsim: kernel d cannot run on the simulated device, which has no code for it\n");
  const char* text = nullptr;
  ASSERT_EQ(CU(cuGetErrorString)(CUDA_ERROR_NO_BINARY_FOR_GPU, &text), CUDA_SUCCESS);
  EXPECT_NE(std::string(text).find("simulated device runs no GPU code"), std::string::npos) << text;
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
}

TEST_F(ModuleTest, AFunctionIsOnePerNameAndBelongsToItsModule) {
  CUmodule modules[2] = {};
  CUfunction functions[3] = {};
  for (CUmodule& module : modules)
    ASSERT_EQ(CU(cuModuleLoadDataEx)(&module, kImage, 0, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&functions[0], modules[0], "f"), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&functions[1], modules[0], "f"), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&functions[2], modules[1], "f"), CUDA_SUCCESS);
  EXPECT_EQ(functions[0], functions[1]);
  EXPECT_NE(functions[0], functions[2]);
  CUmodule owner = nullptr;
  ASSERT_EQ(CU(cuFuncGetModule)(&owner, functions[2]), CUDA_SUCCESS);
  EXPECT_EQ(owner, modules[1]);
  const char* name = nullptr;
  ASSERT_EQ(CU(cuFuncGetName)(&name, functions[0]), CUDA_SUCCESS);
  EXPECT_STREQ(name, "f");
  int threads = 0;
  ASSERT_EQ(CU(cuFuncGetAttribute)(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, functions[0]),
            CUDA_SUCCESS);
  EXPECT_EQ(threads, 1024);
  EXPECT_EQ(CU(cuFuncGetAttribute)(&threads, static_cast<CUfunction_attribute>(9999), functions[0]),
            CUDA_ERROR_INVALID_VALUE);
  for (const CUmodule module : modules) EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
}

TEST_F(ModuleTest, ALibraryIsAModuleAndItsKernelAFunction) {
  CUlibrary library = nullptr;
  ASSERT_EQ(CU(cuLibraryLoadData)(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  CUfunction by_kernel = nullptr;
  CUfunction by_module = nullptr;
  CUmodule module = nullptr;
  ASSERT_EQ(CU(cuLibraryGetKernel)(&kernel, library, "g"), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuKernelGetFunction)(&by_kernel, kernel), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuLibraryGetModule)(&module, library), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&by_module, module, "g"), CUDA_SUCCESS);
  EXPECT_EQ(by_kernel, by_module);
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_ERROR_NOT_PERMITTED) << "it ends with the library";
  EXPECT_EQ(CU(cuLibraryUnload)(library), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuLibraryUnload)(library), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ModuleTest, ALinkedImageLoads) {
  CUlinkState linker = nullptr;
  auto* create = StandIn::driver().function<decltype(cuLinkCreate)>("cuLinkCreate_v2");
  auto* add = StandIn::driver().function<decltype(cuLinkAddData)>("cuLinkAddData_v2");
  ASSERT_EQ(create(0, nullptr, nullptr, &linker), CUDA_SUCCESS);
  char code[] = "code";
  EXPECT_EQ(add(linker, CU_JIT_INPUT_PTX, code, sizeof code, "name", 0, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(add(linker, CU_JIT_INPUT_PTX, nullptr, 0, "name", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  void* image = nullptr;
  size_t size_bytes = 0;
  ASSERT_EQ(CU(cuLinkComplete)(linker, &image, &size_bytes), CUDA_SUCCESS);
  CUmodule module = nullptr;
  EXPECT_EQ(CU(cuModuleLoadData)(&module, image), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuLinkDestroy)(linker), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuLinkDestroy)(linker), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
}

TEST_F(ModuleTest, BadInputIsRefused) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(CU(cuModuleLoadData)(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuModuleLoad)(&module, "/nowhere/kernel.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(CU(cuModuleLoad)(&module, "/tmp"), CUDA_ERROR_FILE_NOT_FOUND) << "a folder";
  EXPECT_EQ(CU(cuModuleLoad)(&module, "/proc/self/limits"), CUDA_ERROR_INVALID_IMAGE) << "empty";
  EXPECT_EQ(CU(cuModuleLoadDataEx)(&module, kImage, 3, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, nullptr, "f"), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(CU(cuModuleLoadData)(&module, kImage), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, ""), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  auto* get_global =
      StandIn::driver().function<decltype(cuModuleGetGlobal)>("cuModuleGetGlobal_v2");
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  EXPECT_EQ(get_global(&variable, &bytes, module, "v"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, "f"), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace uvmsim::test
