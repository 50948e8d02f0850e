// Functions of the Python interpreter in this process, found by name: nothing here is compiled or
// linked against one version of Python.
#pragma once

#include <dlfcn.h>

namespace uvm {

// PyObject*, opaque here.
using PythonObject = void*;

// Sets `out` to nullptr if there is no interpreter, or it has no such function.
template <class Function>
void bind_python(Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace uvm
