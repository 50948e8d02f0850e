// The Python functions of RFC-0023 (pytorch/python/uvmalloc/torch_names.py). This library contains
// the source of that file, so a program gets the functions without importing the package. The
// library is not linked to Python: it looks up Python's functions in the process.
#pragma once

namespace uvm {

// Adds the functions to torch, now or when torch's modules are complete. Call it with Python's lock
// and without the loader's lock. Does nothing without Python. On an error, Python prints the error
// and torch does not change.
void add_python_names();

}  // namespace uvm

// Called by torch_names.py. All arguments are Python objects; `descriptor` is a method of a class
// written in C. After this call, a call of the method with the keyword argument `keyword` calls
// handler(self, value, *args, **kwargs) instead, and `kwargs` does not contain that argument. Other
// calls reach the method as before. Returns false if this Python lays out methods in an unknown
// way, or if a method is already intercepted.
extern "C" __attribute__((visibility("default"))) bool uvmalloc_take_keyword(void* descriptor,
                                                                             void* keyword,
                                                                             void* handler);

// Called by torch_names.py. `function` is a method of tensors written in C that takes no arguments,
// or a function written in C whose first argument is a tensor. It returns an address in the
// tensor's memory without taking the memory for writing. From now on, its calls are reported to the
// plugin (TorchHooks::set_exporting). Returns false if this Python lays out functions in an unknown
// way, or if there is no room for another function.
extern "C" __attribute__((visibility("default"))) bool uvmalloc_watch_address(void* function);
