// The Python functions that are calling. They are found by the stable part of Python's C interface,
// which is looked up by name. So one plugin serves every Python, and processes without Python.
#pragma once

#include <span>
#include <string>

namespace uvm::torch_plugin {

// Whether this thread's innermost Python frame runs code of one of the imported `modules`. Frames
// of the modules in `between` are passed over. A module is known by its dictionary, so a file of
// the same name elsewhere is not taken for it. Needs the global interpreter lock and leaves no
// Python error set; false where there is no Python.
bool called_from(std::span<const char* const> modules, std::span<const char* const> between);

// "file.py:12 function" of this thread's innermost Python frame outside torch and uvmalloc. Empty
// where there is none, or no Python that still runs. Takes the global interpreter lock.
std::string calling_line();

}  // namespace uvm::torch_plugin
