// Functions of the Python interpreter that runs us, found in the process: nothing here is compiled
// or linked against one version of it.
#pragma once

#include <dlfcn.h>

namespace uvm {

// PyObject*, opaque here.
using PythonObject = void*;

// nullptr: no interpreter runs here, or it has no such function.
template <class Function>
void bind_python(Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace uvm
