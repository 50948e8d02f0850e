#include "pytorch/plugin/call_sites.hpp"

#include <exception>
#include <memory>
#include <string>

#include <torch/csrc/autograd/function.h>

#include "pytorch/plugin/python_frames.hpp"

namespace uvm::torch_plugin {

void name_call_site(CachingManagedAllocator& allocator, const void* address) noexcept {
  try {
    std::string site = calling_line();
    if (const auto node = torch::autograd::get_current_node()) {
      site = site.empty() ? "autograd, " + node->name() : site + ", " + node->name();
    }
    allocator.tracing().call_site(address, site);
  } catch (const std::exception&) {  // no memory for the string: the block gets no call site
  }
}

}  // namespace uvm::torch_plugin
