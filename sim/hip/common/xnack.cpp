#include "sim/hip/common/xnack.hpp"

#include <cstdlib>
#include <string_view>

#include "sim/engine/machine.hpp"

namespace uvmsim::hip {

bool is_xnack_on() {
  static const bool wanted = [] {
    const char* text = secure_getenv("HSA_XNACK");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return wanted && Machine::instance().profile().reaches_ordinary_memory();
}

}  // namespace uvmsim::hip
