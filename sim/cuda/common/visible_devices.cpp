#include "sim/cuda/common/visible_devices.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "sim/api/listed_devices.hpp"
#include "sim/cuda/common/library_folder.hpp"
#include "sim/engine/initialization.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim::cuda {
namespace {

// Like CUDA's runtime library, loads the driver library at initialisation. Then other libraries of
// the process find the driver library mapped.
void load_driver_library() {
  const std::string path = library_folder() + "/libcuda.so.1";
  dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::vector<int> read_visible_devices() {
  load_driver_library();
  const int device_count = Machine::instance().device_count();
  return api::listed_devices(secure_getenv("CUDA_VISIBLE_DEVICES"), device_count);
}

}  // namespace

const std::vector<int>& visible_devices() {
  return initialize(&read_visible_devices);
}

}  // namespace uvmsim::cuda
