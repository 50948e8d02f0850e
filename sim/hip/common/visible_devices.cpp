#include "sim/hip/common/visible_devices.hpp"

#include <cstdlib>

#include "sim/api/listed_devices.hpp"
#include "sim/engine/initialization.hpp"
#include "sim/engine/machine.hpp"

extern "C" unsigned hsa_init();

namespace uvmsim::hip {
namespace {

std::vector<int> read_visible_devices() {
  const char* list = secure_getenv("HIP_VISIBLE_DEVICES");
  if (list == nullptr) list = secure_getenv("CUDA_VISIBLE_DEVICES");
  return api::listed_devices(list, Machine::instance().device_count());
}

}  // namespace

const std::vector<int>& visible_devices() {
  // Needed even if another interface has initialised the process, because that interface does not
  // initialise the HSA runtime.
  static const bool initialized = hsa_init() == 0;
  (void)initialized;
  return initialize(&read_visible_devices);
}

}  // namespace uvmsim::hip
