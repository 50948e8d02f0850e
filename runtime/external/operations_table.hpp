// Checks tables of operations. Owns nothing; thread-safe.
#pragma once

#include <string>

#include <uvmalloc/uvmalloc_runtime.h>

namespace uvm::external {

// Why the table cannot be used, as the rest of a sentence whose subject is the table; empty: it
// can. Reads only members that the table's version has.
std::string fault_of(const uvmalloc_runtime_operations* operations);

}  // namespace uvm::external
