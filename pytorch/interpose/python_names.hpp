// RFC-0023's names in Python (pytorch/python/uvmalloc/torch_names.py). This library carries the
// text of that file, so a program has the names without importing the package. The library is not
// linked to Python: it finds Python's functions in the process.
#pragma once

namespace uvm {

// Adds the names to torch, now or when torch's modules are complete. Call it with Python's lock and
// without the loader's. Does nothing without Python. An error is printed as Python prints one, and
// leaves torch as it is.
void add_python_names();

}  // namespace uvm

// For torch_names.py. All arguments are Python objects, and `descriptor` is a method of a class
// written in C. After this call, a call with the keyword argument `keyword` calls handler(self,
// value, *args, **kwargs) instead, and `kwargs` lacks that argument. Other calls reach the method
// as before. Returns false if this Python lays out methods in an unknown way.
extern "C" __attribute__((visibility("default"))) bool uvmalloc_take_keyword(void* descriptor,
                                                                             void* keyword,
                                                                             void* handler);
