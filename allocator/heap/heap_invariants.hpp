// Aborts with a line where what must hold does not.
#pragma once

namespace uvm {

void require_invariant(bool holds, const char* what);

}  // namespace uvm
