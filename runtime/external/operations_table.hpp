// Checks tables of operations. Owns nothing; thread-safe.
#pragma once

#include <string>

#include <uvmalloc/uvmalloc_runtime.h>

namespace uvm::external {

// Returns why the table cannot be used, as the rest of a sentence that begins with the table, or an
// empty string if the table can be used. Reads only members that the table's version has.
std::string fault_of(const uvmalloc_runtime_operations* operations);

}  // namespace uvm::external
