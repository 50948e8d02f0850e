#include "sim/cuda/common/library_folder.hpp"

#include <dlfcn.h>

namespace uvmsim::cuda {

std::string library_folder() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&library_folder), &self) == 0 || self.dli_fname == nullptr)
    return {};
  const std::string path = self.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string{} : path.substr(0, slash);
}

}  // namespace uvmsim::cuda
