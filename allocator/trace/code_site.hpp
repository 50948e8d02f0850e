// Describes where in compiled code a call was made. Thread-safe. Takes the loader's lock and
// allocates.
#pragma once

#include <string>

namespace uvm {

// `caller` is a return address. Returns "function+0x1f in libname.so" if the library exports the
// function. Otherwise returns "libname.so+0x1234", with the offset from the start of the loaded
// file, as addr2line takes it. Both offsets point to the last byte of the call, so that addr2line
// finds the line of the call. If the code is in no file, returns its address.
std::string code_site(const void* caller);

}  // namespace uvm
