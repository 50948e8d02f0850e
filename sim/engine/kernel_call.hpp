// How a program launched a kernel, for queries about a graph's nodes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

namespace uvmsim {

struct KernelCall : std::enable_shared_from_this<KernelCall> {
  const void* function = nullptr;
  uvmsim_grid grid{};
  std::vector<std::vector<std::byte>> values;  // values of the arguments
  std::vector<void*> arguments;                // addresses of `values`

  // Copies the arguments at `from`, which have the given sizes.
  KernelCall(const void* launched, const uvmsim_grid& on_grid, void* const* from,
             const std::vector<std::size_t>& sizes)
      : function(launched), grid(on_grid) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto* first = static_cast<const std::byte*>(from[i]);
      values.emplace_back(first, first + sizes[i]);
    }
    for (std::vector<std::byte>& value : values) arguments.push_back(value.data());
  }
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;
};

}  // namespace uvmsim
