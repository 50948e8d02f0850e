// RFC-0023's names in Python (pytorch/python/uvmalloc/torch_names.py). This library carries their
// text, so a program has them without importing anything of ours. The library is not linked to
// Python: it finds Python's functions in the process.
#pragma once

namespace uvm {

// Puts the names into torch, or has them put there when torch's modules are complete. Call it with
// Python's lock and without the loader's. Does nothing where there is no Python; an error is
// printed as Python prints one, and torch is left as it is.
void add_python_names();

}  // namespace uvm

// For torch_names.py. All arguments are Python objects, and `descriptor` is a method of a class
// written in C. From now on a call with the keyword argument `keyword` calls
// handler(self, value, *args, **kwargs) instead, and `kwargs` lacks that argument. Other calls go
// to the method as before. Returns false if this Python lays out methods in an unknown way.
extern "C" __attribute__((visibility("default"))) bool uvmalloc_take_keyword(void* descriptor,
                                                                             void* keyword,
                                                                             void* handler);
