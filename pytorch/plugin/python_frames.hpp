// The Python functions on the stack, found by the stable part of Python's C interface, which is
// looked up by name. So one plugin serves every Python, and processes without Python.
#pragma once

#include <span>
#include <string>

#include <uvmalloc/types.hpp>

namespace uvm::torch_plugin {

// Whether this thread's innermost Python frame runs code of one of the imported `modules`. Frames
// of the modules in `between` are skipped. A module is identified by its dictionary, so a file of
// the same name elsewhere does not match. Needs the global interpreter lock, and leaves no Python
// error set. False without Python.
bool called_from(std::span<const char* const> modules, std::span<const char* const> between);

// "file.py:12 function" of this thread's innermost Python frame outside torch and uvmalloc. Empty
// if there is none, or no Python is running. Takes the global interpreter lock.
std::string calling_line();

// Whether functions on the stacks of Python's threads search for the largest batch. Looks at all
// threads, because a backward pass allocates in a thread of torch's own. kNone in a thread that is
// unknown to the interpreter, which must not wait for its lock. Takes the global interpreter lock.
SearchSign search_sign();

}  // namespace uvm::torch_plugin
