#include "pytorch/plugin/out_of_memory.hpp"

#include <cerrno>
#include <cstring>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>

namespace uvm::torch_plugin {

std::string out_of_memory_words(Facade facade, std::size_t size_bytes) {
  using c10::CachingAllocator::format_size;
  switch (facade) {
    case Facade::kHost:
      return c10::str("DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
                      size_bytes, " bytes. Error code ", ENOMEM, " (", std::strerror(ENOMEM), ").");
    case Facade::kPinned:
      return c10::str("CUDA out of memory. Tried to allocate ", format_size(size_bytes),
                      " of pinned memory (CUDA error: out of memory).");
    case Facade::kDevice:
      break;
  }
  return c10::str("CUDA out of memory. Tried to allocate ", format_size(size_bytes), ".");
}

}  // namespace uvm::torch_plugin
