// The place of a call in compiled code, as a trace names it. A free function, thread-safe. It takes
// the loader's lock and allocates.
#pragma once

#include <string>

namespace uvm {

// `caller` is a return address. Returns "function+0x1f in libname.so" if the library exports the
// function, else "libname.so+0x1234", the offset in the file's memory that addr2line takes. Both
// offsets are those of the last byte of the call, so that addr2line names the line of the call.
// Code of no file: its address.
std::string code_site(const void* caller);

}  // namespace uvm
