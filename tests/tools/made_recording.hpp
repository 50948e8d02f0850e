// Handwritten recordings, and a machine with times that are easy to count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/machine_profile.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/recording.hpp"

#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::testing {

// Copies run at 2 bytes/ns; kernels cost only the time that the recording states.
inline constexpr std::uint64_t kCopyNs = uvmsim::kBlockBytes / 2;

inline uvmsim::MachineProfile copying_machine() {
  uvmsim::MachineProfile profile;
  profile.costs = uvmsim::Costs{};
  profile.costs.to_device_bytes_per_ns = 2;
  profile.costs.to_host_bytes_per_ns = 2;
  return profile;
}

// One allocation for each block, all before the only step, which lasts until the next mark.
struct MadeRecording {
  explicit MadeRecording(std::uint32_t blocks) {
    recording.streams.push_back({0});
    recording.allocation_count = blocks;
    for (std::uint32_t block = 0; block < blocks; ++block) {
      recording.block_addresses.push_back(block * uvmsim::kBlockBytes);
      add_allocation(block, uvmsim::replay::EventKind::kAllocate);
    }
    add_mark("step");
  }

  void add_allocation(std::uint32_t block, uvmsim::replay::EventKind kind) {
    uvmsim::replay::Event event;
    event.kind = kind;
    event.block = block;
    event.pages = oversubscription::pages_of(block);
    event.amount = uvmsim::kBlockBytes;
    recording.events.push_back(event);
  }
  void add_kernel(const std::vector<std::uint32_t>& blocks, std::uint64_t duration_ns,
                  int access = UVMSIM_READ | UVMSIM_WRITE) {
    uvmsim::replay::Event event;
    event.is_timed = true;
    event.amount = duration_ns;
    event.first_touch = static_cast<std::uint32_t>(recording.touches.size());
    event.touch_count = static_cast<std::uint32_t>(blocks.size());
    for (const std::uint32_t block : blocks)
      recording.touches.push_back(
          {oversubscription::pages_of(block), uvmsim::kBlockBytes, access, block});
    recording.events.push_back(event);
  }
  void add_mark(const std::string& text) {
    recording.marks.push_back({recording.events.size(), text});
    uvmsim::replay::Event event;
    event.kind = uvmsim::replay::EventKind::kMark;
    recording.events.push_back(event);
  }

  uvmsim::replay::Recording recording;
};

}  // namespace uvm::testing
