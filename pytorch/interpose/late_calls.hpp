// Makes torch call the functions in torch_calls.cpp, through which uvmalloc follows tensors. If
// this library was preloaded, torch already calls them. Otherwise take_torch_calls() overwrites the
// call slots of libraries that are already loaded, and adds this library to the global scope, which
// libraries loaded later search first.
#pragma once

#include <string>

namespace uvm::interpose {

// Returns an empty string, or one line that says why some calls would bypass this library. If it
// returns a line, no memory may be shared. May be called again.
std::string take_torch_calls();

}  // namespace uvm::interpose
