// What the spans of the host facade are made of. Managed memory is the driver's, and a forked child
// cannot have it. Ordinary anonymous memory is the kernel's: a child inherits it copy on write, and
// idle pages of it go back to the machine at once. It serves where every device reaches it. Devices
// that do so by page fault (HMM) have it in pages of 4 KiB where managed memory has 2 MiB, so there
// it is used where the user wants it, and else only where devices use the host's page tables.
//
// No state. The mapping functions call the kernel and no driver.
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

const char* to_string(HostBacking backing);

bool reach_ordinary_memory(const std::vector<DeviceDescription>& devices);  // all of them

// kManaged or kOrdinary.
HostBacking host_backing_of(const std::vector<DeviceDescription>& devices, HostBacking wanted);

// `size_bytes`, a multiple of 2 MiB, of zeros at a multiple of 2 MiB; nullptr where the kernel
// refuses. Takes no memory before it is touched.
void* map_ordinary(std::size_t size_bytes);
void unmap_ordinary(void* address, std::size_t size_bytes) noexcept;

// Whole pages of it give their memory back and read as zeros again. A forked child keeps what it
// has. Where the kernel refuses, nothing is changed.
RuntimeStatus drop_ordinary(void* address, std::size_t size_bytes) noexcept;

}  // namespace uvm
