// Models programs that move part of their memory explicitly, on a device without unified memory: a
// recorded step with added copies. The copies are those that such programs make, on the stream of
// the kernels:
//   offload-weights      accelerate's cpu_offload: a module's weights arrive before the module runs
//                        and are dropped after it. They must not be written.
//   offload-activations  PyTorch's save_on_cpu with pinned memory: a tensor that backward needs is
//                        copied to the host after its last use in forward, and back before
//                        backward.
//   offload-optimizer    the optimizer's state arrives before its step and goes back after it.
// The copies run at the speed of the link. Memory that leaves the device is freed there at once.
// Pure functions, and a policy that sends the copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/engine/cost_model.hpp"
#include "sim/replay/hint_policy.hpp"
#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

inline constexpr std::array<std::string_view, 3> kOffloadNames = {
    "offload-weights", "offload-activations", "offload-optimizer"};

struct OffloadCopy {
  std::size_t before = 0;    // the event before which the copy is sent
  std::uint32_t stream = 0;  // stream of the copy
  uvmsim::CopyWay way = uvmsim::CopyWay::kToDevice;
  std::uint64_t bytes = 0;
  bool host_waits = true;
};

struct Offload {
  std::uint64_t peak_bytes = 0;     // most bytes on the device, from the first mark on
  std::vector<OffloadCopy> copies;  // sorted by `before`
  std::string failure;              // empty, or why there is nothing to move
};

// `recording` must be a repeated step. Throws std::invalid_argument for an unknown name.
Offload offload_of(const uvmsim::replay::Recording& recording, std::string_view name);

class OffloadPolicy final : public uvmsim::replay::HintPolicy {
 public:
  explicit OffloadPolicy(const Offload& offload) : copies_(offload.copies) {}
  void before(std::size_t event, uvmsim::replay::Hints& hints) override;

 private:
  const std::vector<OffloadCopy>& copies_;
  std::size_t next_ = 0;
};

}  // namespace uvm::oversubscription
