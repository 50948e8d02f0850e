// Decides when CPU tensors are managed, and for which device. Unless the program requests managed
// memory, uvmalloc neither initialises the driver nor chooses a device. Managed memory belongs to a
// context, so host memory is allocated in the context of a device that the program uses.
#pragma once

#include <optional>

#include "allocator/interface.hpp"

namespace uvm::torch_plugin {

struct HostPlace {
  CachingManagedAllocator* allocator = nullptr;
  int device = 0;
};

// Returns where CPU tensors get their memory, or nullopt if malloc serves them. malloc serves them
//  * until the program has initialised the driver;
//  * until a program that sees several devices has a context on one of them;
//  * if uvmalloc cannot be active, and in forked children.
// With `at_once`, the first two conditions are ignored: the driver is initialised if necessary.
std::optional<HostPlace> place_for_cpu_tensors(bool at_once);

// Call it after uvmalloc has initialised the driver. Then torch refuses CUDA in forked children
// with its own message, as if torch had initialised the driver.
void refuse_cuda_in_children();

// Returns the device in whose context host memory for the device `wanted` is allocated: the device
// of CPU tensors. If that is not chosen yet, chooses `wanted`, or another device if only the other
// one has a context.
int device_for_host_memory(int wanted);

// Returns the device in whose context pinned memory is allocated: the current device, or another
// one if only the other one has a context.
int device_for_pinned_memory();

}  // namespace uvm::torch_plugin
