// Makes torch call the functions of torch_calls.cpp, by which we see what happens to its tensors.
// If this library was preloaded, torch calls them without our help. A library that is loaded later
// takes the slots of the libraries before it, and comes first for libraries after it.
#pragma once

#include <string>

namespace uvm::interpose {

// Empty, or in one line why some calls would pass us by: then nothing may be shared. May be called
// again.
std::string take_torch_calls();

}  // namespace uvm::interpose
