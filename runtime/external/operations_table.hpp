// Checks tables of operations. Owns nothing; thread-safe.
#pragma once

#include <string>

#include <uvmalloc/uvmalloc_runtime.h>

namespace uvm::external {

// Returns why the table cannot be used, or an empty string if it can. The reason continues a
// sentence whose subject is the table. Reads only members that the table's version has.
std::string fault_of(const uvmalloc_runtime_operations* operations);

}  // namespace uvm::external
