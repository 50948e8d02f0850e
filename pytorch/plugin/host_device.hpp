// When CPU tensors are managed, and for which device. Unless the program requests managed memory,
// uvmalloc does not initialise the driver, nor choose among several devices. Managed memory belongs
// to a context, so host memory is allocated in the context of a device that the program uses.
#pragma once

#include <optional>

#include "allocator/interface.hpp"

namespace uvm::torch_plugin {

struct HostPlace {
  CachingManagedAllocator* allocator = nullptr;
  int device = 0;
};

// Where the memory of CPU tensors comes from; nullopt: malloc. malloc serves them
//  * until the program has initialised the driver;
//  * until a program that sees several devices has a context on one of them;
//  * if uvmalloc cannot be active, and in forked children.
// With `at_once` the first two do not count: the driver is initialised if need be.
std::optional<HostPlace> place_for_cpu_tensors(bool at_once);

// Call it after uvmalloc has initialised the driver. Torch then refuses CUDA in forked children
// with its own message, as it does when it has initialised the driver itself.
void refuse_cuda_in_children();

// The device in whose context host memory for the device `wanted` is allocated: that of CPU
// tensors. If they have none yet, chooses `wanted`, or another device if only that one has a
// context.
int device_for_host_memory(int wanted);

// The device in whose context pinned memory is allocated: the current one, unless only another one
// has a context.
int device_for_pinned_memory();

}  // namespace uvm::torch_plugin
