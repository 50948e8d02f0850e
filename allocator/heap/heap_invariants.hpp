// Logs `what` and aborts the process if an invariant does not hold.
#pragma once

namespace uvm {

void require_invariant(bool holds, const char* what);

}  // namespace uvm
