// When CPU tensors are managed, and for which device. uvmalloc is never the first to initialise the
// driver. It makes no context where the program has a choice of devices. Memory of the driver
// belongs to a context, so host memory is made in the context of a device that the program uses.
#pragma once

#include <optional>

#include "allocator/interface.hpp"

namespace uvm::torch_plugin {

struct HostPlace {
  CachingManagedAllocator* allocator = nullptr;
  int device = 0;
};

// Returns the source of the memory of CPU tensors, or nullopt for the C library. It is the C
// library
//  * until the program has initialised the driver;
//  * until a program that sees several devices has a context on one of them;
//  * where uvmalloc cannot be active, and in forked children.
// `at_once` asks for managed memory, and initialises the driver if it has to.
std::optional<HostPlace> place_for_cpu_tensors(bool at_once);

// Call it after uvmalloc has initialised the driver. Torch then refuses CUDA in forked children
// with its own message, as it does when it has initialised the driver itself.
void refuse_cuda_in_children();

// The device in whose context host memory is made that `wanted` is about to use: the one of CPU
// tensors, else `wanted`.
int device_for_host_memory(int wanted);

// The device in whose context pinned memory is made: the current one, unless only another one has a
// context.
int device_for_pinned_memory();

}  // namespace uvm::torch_plugin
