// The memory behind host spans: managed or ordinary. Managed memory belongs to the driver, and a
// forked child does not inherit it. Ordinary anonymous memory belongs to the kernel: a child
// inherits it copy on write, and its idle pages return to the machine at once. Ordinary memory can
// be used only if every device can access it. With page faults (HMM) a device maps ordinary memory
// in 4 KiB pages and managed memory in 2 MiB pages. So ordinary memory is the default only if
// devices use the host's page tables.
//
// Has no state. The mapping functions call the kernel, never a driver.
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>

namespace uvm {

const char* to_string(HostBacking backing);

// Returns whether all devices can access ordinary memory.
bool reach_ordinary_memory(const std::vector<DeviceDescription>& devices);

// Returns the backing to use for the setting `wanted`: kManaged or kOrdinary.
HostBacking host_backing_of(const std::vector<DeviceDescription>& devices, HostBacking wanted);

// Maps `size_bytes` bytes of zeros, a multiple of 2 MiB, at a multiple of 2 MiB. Returns nullptr if
// the kernel refuses. The mapping takes no memory until it is touched.
void* map_ordinary(std::size_t size_bytes);
void unmap_ordinary(void* address, std::size_t size_bytes) noexcept;

// Maps new memory, of zeros, over whole pages of ordinary memory. Returns false, and changes
// nothing, if the kernel refuses.
bool renew_ordinary(void* address, std::size_t size_bytes) noexcept;

// Gives the memory of whole pages back to the kernel; the pages then read as zeros. A forked child
// keeps its copy. If the kernel refuses, nothing changes.
RuntimeStatus drop_ordinary(void* address, std::size_t size_bytes) noexcept;

}  // namespace uvm
