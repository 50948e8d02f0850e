// Makes torch call the functions of torch_calls.cpp, through which uvmalloc follows tensors. If
// this library was preloaded, torch calls them anyway. A library that is loaded later overwrites
// the slots of the libraries before it, and joins the global scope, which later libraries search
// first.
#pragma once

#include <string>

namespace uvm::interpose {

// Returns an empty string, or one line that says why some calls would bypass this library. In that
// case no memory may be shared. May be called again.
std::string take_torch_calls();

}  // namespace uvm::interpose
