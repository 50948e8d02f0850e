#include "sim/hip/common/version.hpp"

namespace uvmsim::hip {

const int kVersion = UVMSIM_HIP_VERSION;

}  // namespace uvmsim::hip
