// In which order kernels use memory: the input of every plan. A block is 2 MiB of managed memory,
// which a device takes or gives back as one chunk. Plain values; nothing of a driver or a machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace uvm::plan {

struct BlockUse {
  std::uint32_t block = 0;
  // Bytes in the block, before the kernel, that this or a later kernel needs. 0: the block is dead
  // until then.
  std::uint64_t live_bytes = 0;
  bool writes = false;
};

// Kernels in the order of their stream, each with every block that it uses, once.
struct UseOrder {
  std::vector<std::vector<BlockUse>> kernels;
  // How long each takes with its blocks on the device. Empty where that is not known.
  std::vector<std::uint64_t> kernel_ns;
  std::size_t block_count = 0;
  // By block: bytes that are needed after the last kernel. Blocks beyond the end have none.
  std::vector<std::uint64_t> live_at_end;
};

}  // namespace uvm::plan
