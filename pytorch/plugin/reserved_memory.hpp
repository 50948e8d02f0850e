// The interface through which groups use reserved memory.
#pragma once

#include <uvmalloc/groups.hpp>

namespace uvm::torch_plugin {

// Puts all current and later memory of the range that begins at `address` into the group. For
// GroupNumber{0}, takes the memory out of its group. Returns false if no such range begins there.
bool join_reserved_memory(const void* address, GroupNumber group);

}  // namespace uvm::torch_plugin
