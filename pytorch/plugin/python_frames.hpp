// Inspects the Python functions on the stack with the stable part of Python's C interface, which is
// looked up by name. So one plugin works with every Python, and in processes without Python.
#pragma once

#include <span>
#include <string>

#include <uvmalloc/types.hpp>

namespace uvm::torch_plugin {

// Whether this thread's innermost Python frame runs code of one of the imported `modules`. Frames
// of the modules in `between` are skipped. A module is identified by its dictionary, so a file with
// the same name elsewhere does not match. Call it with the global interpreter lock. Leaves no
// Python error set. Returns false without Python.
bool called_from(std::span<const char* const> modules, std::span<const char* const> between);

// Returns "file.py:12 function" for this thread's innermost Python frame outside torch and
// uvmalloc, or "" without such a frame or without Python. Takes the global interpreter lock.
std::string calling_line();

// Whether functions on the stacks of Python's threads search for the largest batch. Looks at all
// threads, because torch runs the backward pass in threads of its own. Takes the global interpreter
// lock. A thread that the interpreter does not know must not wait for that lock, so there the
// result is kNone.
SearchSign search_sign();

}  // namespace uvm::torch_plugin
