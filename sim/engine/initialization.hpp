// Whether any interface has been initialised in this process: a driver interface wants an explicit
// call first, a runtime on top of it initialises by itself, and both then count as initialised.
#pragma once

#include <uvmalloc/sim/engine/export.hpp>

namespace uvmsim {

UVMSIM_EXPORT void set_initialized();
UVMSIM_EXPORT bool is_initialized();

}  // namespace uvmsim
