// XNACK: whether a device's access to a page that is elsewhere faults and migrates it. On the
// modelled cards that needs hardware that can (the profiles `hmm` and `coherent`) and HSA_XNACK=1
// when the process starts.
#pragma once

namespace uvmsim::hip {

bool is_xnack_on();

}  // namespace uvmsim::hip
