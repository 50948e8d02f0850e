// XNACK: whether a device's access to a page on another location faults and migrates the page.
// XNACK needs hardware support (the profiles `hmm` and `coherent`) and HSA_XNACK=1 when the process
// starts.
#pragma once

namespace uvmsim::hip {

bool is_xnack_on();

}  // namespace uvmsim::hip
