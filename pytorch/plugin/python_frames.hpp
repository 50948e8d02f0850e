// Who in Python is calling: by the stable part of Python's C interface, looked up by name, so that
// one plugin serves every Python and processes without any.
#pragma once

#include <initializer_list>
#include <string_view>

namespace uvm::torch_plugin {

// Whether one of the three innermost Python frames of this thread runs code of a file whose path
// ends like one of these, "/torch/serialization.py". Needs the global interpreter lock; false where
// there is no Python.
bool called_from(std::initializer_list<std::string_view> files);

}  // namespace uvm::torch_plugin
