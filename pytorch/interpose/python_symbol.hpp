// Looks up functions of the Python interpreter in this process by name. Nothing here is compiled or
// linked against one version of Python.
#pragma once

#include <dlfcn.h>

namespace uvm {

// A PyObject*, opaque here.
using PythonObject = void*;

// Sets `out` to the function, or to nullptr if there is no interpreter or no such function in it.
template <class Function>
void bind_python(Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace uvm
