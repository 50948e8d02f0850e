// Modules, libraries and their functions. The simulated device cannot read GPU code. So it accepts
// every image, and treats the image as if it contained every function that a program requests. A
// launch runs the function if the plug-in of UVMSIM_KERNELS has code for a kernel of that name.
// Otherwise the launch prints the function's name once, and fails like a launch without a kernel
// image.
//
// One table contains modules, libraries and linkers, another contains functions. A CUkernel is the
// CUfunction of the same name, as for kernels of the runtime. Handles are never reused.
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/driver/entry.hpp"
#include "sim/engine/kernel_registry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

struct Function {
  const void* module;
  std::string name;
};

class Modules {
 public:
  static Modules& instance() {
    static Modules one;
    return one;
  }

  enum class Kind : char { kModule, kLibrary, kLinker };

  void* load(Kind kind) {
    const std::lock_guard lock(mutex_);
    void* handle = &handles_.emplace_back(kind);
    loaded_.insert(handle);
    return handle;
  }
  bool is_library(const void* handle) {
    const std::lock_guard lock(mutex_);
    return loaded_.contains(handle) && *static_cast<const Kind*>(handle) == Kind::kLibrary;
  }
  bool unload(const void* module) {
    const std::lock_guard lock(mutex_);
    return loaded_.erase(module) != 0;
  }
  bool is_loaded(const void* module) {
    const std::lock_guard lock(mutex_);
    return loaded_.contains(module);
  }
  // Returns the module's function of that name; null if the module is not loaded.
  void* function(const void* module, const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (!loaded_.contains(module)) return nullptr;
    auto [place, is_new] = by_name_.try_emplace({module, name}, nullptr);
    if (is_new) {
      place->second = &functions_.emplace_back(Function{module, name});
      KernelRegistry::instance().add(place->second, place->second->name.c_str());
    }
    return place->second;
  }
  // Returns null if the function is not of a loaded module.
  const Function* find(const void* function) {
    const std::lock_guard lock(mutex_);
    for (const Function& each : functions_) {
      if (&each == function) return loaded_.contains(each.module) ? &each : nullptr;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::deque<Kind> handles_;
  std::set<const void*> loaded_;
  std::deque<Function> functions_;
  std::map<std::pair<const void*, std::string>, Function*> by_name_;
};

template <class Handle>
CUresult load(Handle* out, const void* image) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr bool kIsLibrary = std::is_same_v<Handle, CUlibrary>;
  *out = static_cast<Handle>(
      Modules::instance().load(kIsLibrary ? Modules::Kind::kLibrary : Modules::Kind::kModule));
  return CUDA_SUCCESS;
}

CUresult can_be_read(const char* file) {
  struct stat found {};
  if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (access(file, R_OK) != 0 || stat(file, &found) != 0 || !S_ISREG(found.st_mode))
    return CUDA_ERROR_FILE_NOT_FOUND;
  return found.st_size != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

template <class Handle>
CUresult load_file(Handle* out, const char* file) {
  const CUresult found = can_be_read(file);
  return found == CUDA_SUCCESS ? load(out, file) : found;
}

template <class Handle>
CUresult give_function(Handle* out, const void* module, const char* name) {
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (*name == '\0') return CUDA_ERROR_NOT_FOUND;
  void* function = Modules::instance().function(module, name);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = static_cast<Handle>(function);
  return CUDA_SUCCESS;
}

// Variables cannot be found, because images are not read.
CUresult no_variable(const void* module, const char* name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Modules::instance().is_loaded(module) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

bool is_function(const void* function) {
  return KernelRegistry::instance().name_of(function) != nullptr;
}

// Returns the attributes of a small kernel: no shared or local memory, and blocks of any size that
// the device supports.
CUresult function_attribute(int* out, CUfunction_attribute attribute, const void* function,
                            int device) {
  if (out == nullptr || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  constexpr int kRegisters = 32;  // assumed
  const auto of_device = [&](CUdevice_attribute wanted) {
    return device_attribute(wanted, device).value_or(0);
  };
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = of_device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *out = kRegisters;
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *out = 10 * of_device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
             of_device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
      break;
    default:
      *out = 0;
  }
  return CUDA_SUCCESS;
}

CUresult accept(const void* function) {
  return is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult give_name(const char** out, const void* function) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = KernelRegistry::instance().name_of(function);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

template <class Handle>
CUresult give_module(Handle* out, const void* function) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function* found = Modules::instance().find(function);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = static_cast<Handle>(const_cast<void*>(found->module));
  return CUDA_SUCCESS;
}

}  // namespace

// ---- modules

CU_API cuModuleLoad(CUmodule* module, const char* file) {
  CU_ENTER_CONTEXT;
  (void)device;
  return load_file(module, file);
}

CU_API cuModuleLoadData(CUmodule* module, const void* image) {
  CU_ENTER_CONTEXT;
  (void)device;
  return load(module, image);
}

CU_API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                          CUjit_option* options, void** values) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return load(module, image);
}

CU_API cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  CU_ENTER_CONTEXT;
  (void)device;
  return load(module, image);
}

CU_API cuModuleUnload(CUmodule module) {
  CU_ENTER;
  // The module of a library ends with the library.
  if (Modules::instance().is_library(module)) return CUDA_ERROR_NOT_PERMITTED;
  return Modules::instance().unload(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  CU_ENTER;
  return give_function(function, module, name);
}

CU_API cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule module, const char* name) {
  CU_ENTER;
  return no_variable(module, name);
}

CU_API cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  CU_ENTER_ANYTIME;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

// ---- libraries, which need no context

CU_API cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                         CUlibraryOption*, void**, unsigned) {
  CU_ENTER;
  return load(library, image);
}

CU_API cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option*, void**, unsigned,
                             CUlibraryOption*, void**, unsigned) {
  CU_ENTER;
  return load_file(library, file);
}

CU_API cuLibraryUnload(CUlibrary library) {
  CU_ENTER;
  return Modules::instance().unload(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  CU_ENTER;
  return give_function(kernel, library, name);
}

CU_API cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  CU_ENTER;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Modules::instance().is_loaded(library)) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}

CU_API cuLibraryGetGlobal(CUdeviceptr*, size_t*, CUlibrary library, const char* name) {
  CU_ENTER;
  return no_variable(library, name);
}

CU_API cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary library, const char* name) {
  CU_ENTER;
  return no_variable(library, name);
}

// ---- linking: the result is a placeholder for an image, which is never read

CU_API cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* out) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = static_cast<CUlinkState>(Modules::instance().load(Modules::Kind::kLinker));
  return CUDA_SUCCESS;
}

CU_API cuLinkAddData_v2(CUlinkState state, CUjitInputType, void* data, size_t size_bytes,
                        const char*, unsigned, CUjit_option*, void**) {
  CU_ENTER;
  if (!Modules::instance().is_loaded(state)) return CUDA_ERROR_INVALID_HANDLE;
  return data == nullptr || size_bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API cuLinkAddFile_v2(CUlinkState state, CUjitInputType, const char* file, unsigned,
                        CUjit_option*, void**) {
  CU_ENTER;
  if (!Modules::instance().is_loaded(state)) return CUDA_ERROR_INVALID_HANDLE;
  return can_be_read(file);
}

CU_API cuLinkComplete(CUlinkState state, void** image, size_t* size_bytes) {
  CU_ENTER;
  if (!Modules::instance().is_loaded(state)) return CUDA_ERROR_INVALID_HANDLE;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static char linked[] = "an image of the simulated device";
  *image = linked;
  if (size_bytes != nullptr) *size_bytes = sizeof linked;
  return CUDA_SUCCESS;
}

CU_API cuLinkDestroy(CUlinkState state) {
  CU_ENTER;
  return Modules::instance().unload(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// ---- functions

CU_API cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  CU_ENTER;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_function(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CU_API cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  CU_ENTER;
  return give_module(library, kernel);
}

CU_API cuFuncGetModule(CUmodule* module, CUfunction function) {
  CU_ENTER;
  return give_module(module, function);
}

CU_API cuKernelGetName(const char** name, CUkernel kernel) {
  CU_ENTER;
  return give_name(name, kernel);
}

CU_API cuFuncGetName(const char** name, CUfunction function) {
  CU_ENTER;
  return give_name(name, function);
}

CU_API cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  CU_ENTER;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return accept(function);
}

CU_API cuFuncLoad(CUfunction function) {
  CU_ENTER;
  return accept(function);
}

CU_API cuFuncGetAttribute(int* out, CUfunction_attribute attribute, CUfunction function) {
  CU_ENTER_CONTEXT;
  return function_attribute(out, attribute, function, device);
}

CU_API cuKernelGetAttribute(int* out, CUfunction_attribute attribute, CUkernel kernel,
                            CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  return function_attribute(out, attribute, kernel, device);
}

CU_API cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  CU_ENTER;
  return accept(function);
}

CU_API cuKernelSetAttribute(CUfunction_attribute, int, CUkernel kernel, CUdevice device) {
  CU_ENTER;
  return is_visible(device) ? accept(kernel) : CUDA_ERROR_INVALID_DEVICE;
}

CU_API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  CU_ENTER;
  return accept(function);
}

CU_API cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  CU_ENTER;
  return is_visible(device) ? accept(kernel) : CUDA_ERROR_INVALID_DEVICE;
}
