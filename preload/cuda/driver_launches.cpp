// Launches of kernels by CUDA's driver, passed on after the memory that they use has been noted
// where memory is short. With the calls after which a handle may name another kernel.
#include "preload/cuda/driver.hpp"
#include "preload/cuda/kernel_words.hpp"
#include "preload/kernel_arguments.hpp"
#include "preload/memory_uses.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

namespace {

// A stream is of the current device where a kernel is launched on it.
void note_driver_launch(const char* call, CUfunction function, const Arguments& arguments,
                        uvm::StreamHandle stream) noexcept {
  note_launch(call, device_of_driver(), stream, [&] { return words_of(function, arguments); });
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                           unsigned grid_z, unsigned block_x, unsigned block_y,
                                           unsigned block_z, unsigned shared_bytes, CUstream stream,
                                           void** arguments, void** extra) {
  if (wants_uses()) note_driver_launch(__func__, function, {arguments, extra}, stream);
  return pass_on(NEXT_OF_DRIVER(cuLaunchKernel), function, grid_x, grid_y, grid_z, block_x, block_y,
                 block_z, shared_bytes, stream, arguments, extra);
}

UVMALLOC_INTERPOSE CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x,
                                                unsigned grid_y, unsigned grid_z, unsigned block_x,
                                                unsigned block_y, unsigned block_z,
                                                unsigned shared_bytes, CUstream stream,
                                                void** arguments, void** extra) {
  if (wants_uses()) note_driver_launch(__func__, function, {arguments, extra}, per_thread(stream));
  return pass_on(NEXT_OF_DRIVER(cuLaunchKernel_ptsz), function, grid_x, grid_y, grid_z, block_x,
                 block_y, block_z, shared_bytes, stream, arguments, extra);
}

UVMALLOC_INTERPOSE CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration,
                                             CUfunction function, void** arguments, void** extra) {
  if (wants_uses() && configuration != nullptr)
    note_driver_launch(__func__, function, {arguments, extra}, configuration->hStream);
  return pass_on(NEXT_OF_DRIVER(cuLaunchKernelEx), configuration, function, arguments, extra);
}

UVMALLOC_INTERPOSE CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* configuration,
                                                  CUfunction function, void** arguments,
                                                  void** extra) {
  if (wants_uses() && configuration != nullptr)
    note_driver_launch(__func__, function, {arguments, extra}, per_thread(configuration->hStream));
  return pass_on(NEXT_OF_DRIVER(cuLaunchKernelEx_ptsz), configuration, function, arguments, extra);
}

UVMALLOC_INTERPOSE CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
                                                      unsigned grid_y, unsigned grid_z,
                                                      unsigned block_x, unsigned block_y,
                                                      unsigned block_z, unsigned shared_bytes,
                                                      CUstream stream, void** arguments) {
  if (wants_uses()) note_driver_launch(__func__, function, {arguments, nullptr}, stream);
  return pass_on(NEXT_OF_DRIVER(cuLaunchCooperativeKernel), function, grid_x, grid_y, grid_z,
                 block_x, block_y, block_z, shared_bytes, stream, arguments);
}

UVMALLOC_INTERPOSE CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x,
                                                           unsigned grid_y, unsigned grid_z,
                                                           unsigned block_x, unsigned block_y,
                                                           unsigned block_z, unsigned shared_bytes,
                                                           CUstream stream, void** arguments) {
  if (wants_uses())
    note_driver_launch(__func__, function, {arguments, nullptr}, per_thread(stream));
  return pass_on(NEXT_OF_DRIVER(cuLaunchCooperativeKernel_ptsz), function, grid_x, grid_y, grid_z,
                 block_x, block_y, block_z, shared_bytes, stream, arguments);
}

UVMALLOC_INTERPOSE CUresult cuModuleUnload(CUmodule module) {
  forget_layouts(__func__);
  return pass_on(NEXT_OF_DRIVER(cuModuleUnload), module);
}

UVMALLOC_INTERPOSE CUresult cuLibraryUnload(CUlibrary library) {
  forget_layouts(__func__);
  return pass_on(NEXT_OF_DRIVER(cuLibraryUnload), library);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
