// When CPU tensors are managed, and on which device's behalf: uvmalloc is never the first to
// initialise the driver, nor to make a context where the program has a choice of devices. Memory of
// the driver belongs to a context, so host memory is made in that of a device that the program
// uses.
#pragma once

#include <optional>

#include <uvmalloc/allocator/interface.hpp>

namespace uvm::torch_plugin {

struct HostPlace {
  CachingManagedAllocator* allocator = nullptr;
  int device = 0;
};

// Where the memory of CPU tensors comes from now; nullopt: from the C library. That is so
//  * until the program has initialised the driver, and, where it sees several devices, has a
//  context
//    on one of them;
//  * where uvmalloc cannot be active, and in forked children.
// `at_once`: managed memory is asked for, whatever that has to initialise.
std::optional<HostPlace> place_for_cpu_tensors(bool at_once);

// After the driver was initialised on our behalf: torch then refuses CUDA in forked children with
// its own message, as where it has initialised the driver itself.
void refuse_cuda_in_children();

// The device in whose context host memory is made that `wanted` is about to use: the one of CPU
// tensors, else `wanted`.
int device_for_host_memory(int wanted);

// The device in whose context pinned memory is made: the current one, unless only another one has a
// context.
int device_for_pinned_memory();

}  // namespace uvm::torch_plugin
