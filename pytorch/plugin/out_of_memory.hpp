// The beginning of errors of memory: torch's own words. Programs look for these words and try again
// with less (accelerate's find_executable_batch_size, Lightning's batch size finder). uvmalloc's
// own words come after them.
#pragma once

#include <cstddef>
#include <string>

#include <uvmalloc/facade.hpp>

namespace uvm::torch_plugin {

// For a request of that facade, up to the end of a sentence.
std::string out_of_memory_words(Facade facade, std::size_t size_bytes);

}  // namespace uvm::torch_plugin
