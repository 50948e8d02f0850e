// Out-of-memory errors begin with torch's own words. Programs search for these words and retry with
// a smaller batch (accelerate's find_executable_batch_size, Lightning's batch size finder).
// uvmalloc's own words follow.
#pragma once

#include <cstddef>
#include <string>

#include <uvmalloc/facade.hpp>

namespace uvm::torch_plugin {

// Returns whole sentences in torch's words for a failed request of that kind of memory.
std::string out_of_memory_words(Facade facade, std::size_t size_bytes);

}  // namespace uvm::torch_plugin
