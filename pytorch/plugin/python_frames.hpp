// The Python functions that are calling. They are found by the stable part of Python's C interface,
// which is looked up by name. So one plugin serves every Python, and processes without Python.
#pragma once

#include <span>
#include <string>

#include <uvmalloc/types.hpp>

namespace uvm::torch_plugin {

// Whether this thread's innermost Python frame runs code of one of the imported `modules`. Frames
// of the modules in `between` are passed over. A module is known by its dictionary, so a file of
// the same name elsewhere is not taken for it. Needs the global interpreter lock and leaves no
// Python error set; false where there is no Python.
bool called_from(std::span<const char* const> modules, std::span<const char* const> between);

// "file.py:12 function" of this thread's innermost Python frame outside torch and uvmalloc. Empty
// where there is none, or no Python that still runs. Takes the global interpreter lock.
std::string calling_line();

// What the functions that run in any thread say about a search for the largest batch. They are
// those of all threads, because a backward pass allocates in a thread of torch's own. kNone in a
// thread that the interpreter does not know, which must not wait for its lock. Takes the lock.
SearchSign search_sign();

}  // namespace uvm::torch_plugin
