#include "pytorch/interpose/late_calls.hpp"

#include <dlfcn.h>

#include <array>

#include <fmt/format.h>

#include "preload/library_copies.hpp"
#include "pytorch/interpose/imported_function.hpp"
#include "pytorch/interpose/torch_probe.hpp"

namespace uvm::interpose {
namespace {

constexpr const char* kToNumpy = "_ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb";
constexpr std::array kTorchCalls = {
    kToNumpy,
    "_ZN2at8toDLPackERKNS_6TensorE",
    "_ZN2at17toDLPackVersionedERKNS_6TensorE",
    "_ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE",
    "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor",
    "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb",
    "_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE",
};

}  // namespace

std::string take_torch_calls() {
  const std::string path = preload::own_path();
  // RTLD_GLOBAL adds this library to the global scope, which libraries loaded later search first.
  void* self = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL);
  void* everybody = dlopen(nullptr, RTLD_LAZY);
  if (self == nullptr || everybody == nullptr) {
    return fmt::format("{} is not known to the loader", path);
  }
  std::array<ImportedFunction, kTorchCalls.size()> functions;
  for (std::size_t index = 0; index < functions.size(); ++index) {
    functions[index] = {kTorchCalls[index], dlsym(self, kTorchCalls[index])};
    if (dlsym(everybody, kTorchCalls[index]) != functions[index].replacement) {
      return fmt::format(
          "the loader finds torch's functions in other libraries before {} (is "
          "TORCH_USE_RTLD_GLOBAL set?); preload it instead",
          path);
    }
  }
  if (find_torch().python_mapped) {
    replace_imported_functions("libtorch_python.so", functions);
    if (!functions[0].replaced) return "this torch exports tensors to numpy in an unknown way";
  }
  replace_imported_functions(nullptr, functions);
  // Functions of CUDA. Sharing does not depend on them, so a failure does not stop the plugin.
  for (const char* function : {"cudaPointerGetAttributes", "cudaGetDeviceCount",
                               "cudaGraphInstantiate", "cudaGraphInstantiateWithFlags",
                               "cudaGraphLaunch", "cudaGraphExecDestroy", "cudaGraphDestroy"}) {
    replace_imported_function(nullptr, function, dlsym(self, function));
  }
  return {};
}

}  // namespace uvm::interpose
