// What a table of operations must be. Owns nothing; any thread may call it.
#pragma once

#include <string>

#include <uvmalloc/uvmalloc_runtime.h>

namespace uvm::external {

// What makes the table unusable, as the rest of a sentence that begins with the table's name. Empty
// for a usable table. Reads no more of it than its version has.
std::string fault_of(const uvmalloc_runtime_operations* operations);

}  // namespace uvm::external
