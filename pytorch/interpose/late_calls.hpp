// Makes torch call the functions of torch_calls.cpp through which it tells what happens to its
// tensors. Where this library was preloaded torch does so by itself; one that is loaded later takes
// the slots of the libraries that were there before, and comes first for those still to come.
#pragma once

#include <string>

namespace uvm::interpose {

// Empty, or in one line why some calls would pass us by: then nothing may be shared. May be called
// again.
std::string take_torch_calls();

}  // namespace uvm::interpose
