// What a report says about the process itself, with or without an allocator.
#pragma once

#include <chrono>

#include "allocator/process/json_text.hpp"

namespace uvm {

void add_process(JsonText* out);

// Returns the time since the library was loaded.
std::chrono::duration<double> process_age();

}  // namespace uvm
