// Out-of-memory errors begin with torch's own message. Programs search for this message and retry
// with a smaller batch (accelerate's find_executable_batch_size, Lightning's batch size finder).
// uvmalloc's own message follows.
#pragma once

#include <cstddef>
#include <string>

#include <uvmalloc/facade.hpp>

namespace uvm::torch_plugin {

// Returns torch's own message, as whole sentences, for a failed request of that kind of memory.
std::string out_of_memory_words(Facade facade, std::size_t size_bytes);

}  // namespace uvm::torch_plugin
