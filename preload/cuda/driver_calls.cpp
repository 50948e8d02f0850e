// The intercepted calls of CUDA's driver, with the handlers that only the driver needs.
#include <cuda.h>

#include "preload/context_ends.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/cuda/graphs.hpp"
#include "preload/cuda/green_contexts.hpp"
#include "preload/cuda/kernel_words.hpp"
#include "preload/cuda/newer_calls.hpp"
#include "preload/define_calls.hpp"
#include "preload/memory_uses.hpp"
#include "preload/observed_calls.hpp"
#include "preload/served_calls.hpp"
#include "preload/virtual_calls.hpp"

namespace uvm::preload::cuda {
namespace {

// Like get_device_pointer(), for addresses that are numbers.
auto get_device_number(const auto& call, CUdeviceptr* out, void* address, unsigned flags) {
  if (out == nullptr || flags != 0 || !is_pinned(address)) {
    return call.forward(out, address, flags);
  }
  *out = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

// The driver's answer describes a whole span. Corrects the answer to describe the block.
void correct(CUpointer_attribute attribute, void* answer,
             const ServedMemory::Range& block) noexcept {
  if (answer == nullptr) return;
  const bool is_pinned = block.kind == Kind::kPinned;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(answer) = reinterpret_cast<CUdeviceptr>(block.base);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(answer) = block.size_bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (is_pinned) *static_cast<unsigned*>(answer) = CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      if (is_pinned || hides_management(block)) *static_cast<unsigned char*>(answer) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      if (block.mapped) *static_cast<int*>(answer) = block.mapped->device;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      if (block.mapped) *static_cast<CUdeviceptr*>(answer) = block.mapped->mapping.address;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      if (block.mapped) *static_cast<std::size_t*>(answer) = block.mapped->mapping.size_bytes;
      break;
    default:
      break;
  }
}

auto get_attribute(const auto& call, void* answer, CUpointer_attribute attribute,
                   CUdeviceptr address) {
  const CUresult result = call.forward(answer, attribute, asked_address(address));
  if (result == CUDA_SUCCESS) {
    if (const auto block = find(pointer_of(address))) correct(attribute, answer, *block);
  }
  return result;
}

auto get_attributes(const auto& call, unsigned count, CUpointer_attribute* attributes,
                    void** answers, CUdeviceptr address) {
  const CUresult result = call.forward(count, attributes, answers, asked_address(address));
  if (result == CUDA_SUCCESS) {
    if (const auto block = find(pointer_of(address))) {
      for (unsigned i = 0; i < count; ++i) correct(attributes[i], answers[i], *block);
    }
  }
  return result;
}

auto destroy_context(const auto& call, CUcontext context) {
  forget_layouts(call.name());
  beside(call.name(), [&] { note_streams_gone(context); });
  const CUresult result = call.forward(context);
  ServedMemory* served = ServedMemory::existing();
  if (result == CUDA_SUCCESS && served != nullptr) served->free_all_of(context);
  return result;
}

// Reports a kernel launch on a stream of the current device. Not inlined, so that a launch that
// need not be reported ends in a jump to the real function.
[[gnu::noinline]] void note_driver_launch(const auto& call, CUfunction function, CUstream stream,
                                          const Arguments& arguments) noexcept {
  note_launch(call.name(), call.device(), call.order(stream),
              [&] { return words_of(function, arguments); });
}

auto launch(const auto& call, CUfunction function, unsigned grid_x, unsigned grid_y,
            unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
            unsigned shared_bytes, CUstream stream, void** arguments, auto... extra) {
  if (wants_uses()) note_driver_launch(call, function, stream, {arguments, extra...});
  return call.forward(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                      stream, arguments, extra...);
}

auto launch_configured(const auto& call, const CUlaunchConfig* configuration, CUfunction function,
                       void** arguments, void** extra) {
  if (wants_uses() && configuration != nullptr)
    note_driver_launch(call, function, configuration->hStream, {arguments, extra});
  return call.forward(configuration, function, arguments, extra);
}

}  // namespace
}  // namespace uvm::preload::cuda

using namespace uvm::preload;
using namespace uvm::preload::cuda;

#define CUDA_DRIVER(name, parameters, forms, handler) \
  UVMALLOC_DEFINE_##forms(Driver, name, parameters, handler)
#include "preload/calls.def"
