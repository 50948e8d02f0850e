// Instances of the packing problem from CSV files with the columns id, lower, upper and size, in
// this order, as in the benchmarks of MiniMalloc and idealloc. `upper` is the first step at which a
// buffer is no longer live.
#pragma once

#include <cstdio>
#include <istream>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm::testing {

// Throws std::invalid_argument if the columns differ or a line does not have four numbers.
inline std::vector<PackBuffer> read_pack_instance(std::istream& text) {
  std::string line;
  std::getline(text, line);
  if (line != "id,lower,upper,size" && line != "id,lower,upper,size\r") {
    throw std::invalid_argument("the columns are '" + line + "'");
  }
  std::vector<PackBuffer> buffers;
  while (std::getline(text, line)) {
    long long lower = 0, upper = 0, size = 0;
    const std::size_t id_end = line.find(',');
    if (id_end == std::string::npos ||
        std::sscanf(line.c_str() + id_end, ",%lld,%lld,%lld", &lower, &upper, &size) != 3) {
      throw std::invalid_argument("the line '" + line + "' has no three numbers after its id");
    }
    buffers.push_back({lower, upper, size});
  }
  return buffers;
}

}  // namespace uvm::testing
