// Instances of the packing problem as text: the CSV of MiniMalloc's benchmarks, with the columns
// id, lower, upper and size in any order. `upper` is the first step at which a buffer is not live
// any more.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

struct PackInstance {
  std::vector<std::string> ids;
  std::vector<PackBuffer> buffers;
};

// std::invalid_argument for a missing or unknown column, a line with other than four values, a
// value that is no whole number, and an id that is there twice. The message has the line's number.
PackInstance read_pack_instance(std::istream& text);

}  // namespace uvm
