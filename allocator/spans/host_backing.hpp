// The memory under spans of the host facade. Managed memory belongs to the driver, and a forked
// child does not inherit it. Ordinary anonymous memory belongs to the kernel: a child inherits it
// copy on write, and its idle pages go back to the machine at once. It can be used if every device
// reaches it. Devices that reach it by page fault (HMM) map it in pages of 4 KiB, managed memory in
// 2 MiB. So it is the default only if devices use the host's page tables.
//
// Without state. The mapping functions call the kernel and no driver.
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>

namespace uvm {

const char* to_string(HostBacking backing);

// Whether all devices reach ordinary memory.
bool reach_ordinary_memory(const std::vector<DeviceDescription>& devices);

// The backing to use for a setting: kManaged or kOrdinary.
HostBacking host_backing_of(const std::vector<DeviceDescription>& devices, HostBacking wanted);

// Maps `size_bytes`, a multiple of 2 MiB, of zeros at a multiple of 2 MiB; nullptr if the kernel
// refuses. The mapping takes no memory before it is touched.
void* map_ordinary(std::size_t size_bytes);
void unmap_ordinary(void* address, std::size_t size_bytes) noexcept;

// Gives the memory of whole pages back; the pages read as zeros again. A forked child keeps its
// copy. If the kernel refuses, nothing changes.
RuntimeStatus drop_ordinary(void* address, std::size_t size_bytes) noexcept;

}  // namespace uvm
