// Counts the operations of an operator, and their type, for the machine's cost model. Products of
// matrices and convolutions count each multiplication and addition; all other operators count one
// operation for each element of their largest tensor. Pure functions.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string_view>

#include <uvmalloc/sim/uvmsim.h>

namespace uvm::sim_kernels {

struct Arithmetic {
  std::uint64_t operations = 0;
  int type = UVMSIM_FLOAT32;
};

// `name` is the operator's local name, such as "mm" or "addmm.out".
Arithmetic arithmetic_of(std::string_view name, c10::ArrayRef<c10::IValue> arguments);

}  // namespace uvm::sim_kernels
