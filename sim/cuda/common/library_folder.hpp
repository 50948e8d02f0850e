// Finds the folder of the stand-ins.
#pragma once

#include <string>

namespace uvmsim::cuda {

// Returns the folder of the library that contains this function, without a final slash, or "".
std::string library_folder();

}  // namespace uvmsim::cuda
