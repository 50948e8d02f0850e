// Memory that grows in place, as groups see it.
#pragma once

#include <uvmalloc/groups.hpp>

namespace uvm::torch_plugin {

// Puts all memory of the range that begins at `address` into the group, now and when it grows;
// GroupNumber{0}: takes it out of its group. Returns false if no such range begins there.
bool join_growing_memory(const void* address, GroupNumber group);

}  // namespace uvm::torch_plugin
