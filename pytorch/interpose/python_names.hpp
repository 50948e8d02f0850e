// RFC-0023's names in Python (pytorch/python/uvmalloc/torch_names.py), which this library carries
// with it: a program has them without importing anything of ours. No Python is linked to; its
// functions are found in the process.
#pragma once

namespace uvm {

// Puts the names into torch, or has them put there when torch's modules are complete. Call it with
// Python's lock and without the loader's. Does nothing where there is no Python; an error is
// printed as Python prints one, and torch is left as it is.
void add_python_names();

}  // namespace uvm

// For torch_names.py. `descriptor` is a method of a class written in C (a Python object, as is what
// follows). From now on a call of it that has the keyword argument `keyword` calls
// handler(self, value, *args, **kwargs) instead, where `kwargs` lacks it; all others go to the
// method as before. False: this Python lays out such methods in a way not known here.
extern "C" __attribute__((visibility("default"))) bool uvmalloc_take_keyword(void* descriptor,
                                                                             void* keyword,
                                                                             void* handler);
