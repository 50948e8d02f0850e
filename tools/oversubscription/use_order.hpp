// The order in which kernels use memory: the input of every plan. A block is 2 MiB of managed
// memory, which a device gets or releases as one chunk. Plain values, independent of driver and
// machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace uvm::plan {

struct BlockUse {
  std::uint32_t block = 0;
  // Bytes in the block, before the kernel, that this kernel or a later one needs. 0: nothing in the
  // block is needed.
  std::uint64_t live_bytes = 0;
  bool writes = false;
};

// Kernels in stream order, each with its blocks, without duplicates.
struct UseOrder {
  std::vector<std::vector<BlockUse>> kernels;
  // The duration of each kernel if its blocks are on the device. Empty if unknown.
  std::vector<std::uint64_t> kernel_ns;
  std::size_t block_count = 0;
  // By block: bytes that are needed after the last kernel. Missing entries mean 0.
  std::vector<std::uint64_t> live_at_end;
};

}  // namespace uvm::plan
