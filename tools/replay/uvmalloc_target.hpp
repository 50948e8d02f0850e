// Replays on uvmalloc through its public interface, on the runtime selected by UVMALLOC_RUNTIME.
// Owns the allocator, and creates a stream on the machine for each stream of the trace.
#pragma once

#include <memory>
#include <vector>

#include "allocator/interface.hpp"

#include "tools/replay/replay_target.hpp"

namespace uvm::replay {

class UvmallocTarget final : public ReplayTarget {
 public:
  // Throws std::runtime_error, with one line of text, if the machine cannot be used or has fewer
  // than `devices` devices.
  UvmallocTarget(const Configuration& configuration, int devices);
  ~UvmallocTarget() override;

  void prepare(std::span<const ReplayStream> streams) override;
  void* allocate(Facade facade, int device, std::size_t size_bytes, int stream) override;
  bool free(void* address) override;
  bool use(void* address, int stream) override;
  bool move(void* address, Place source, Place destination, int stream) override;

  const CachingManagedAllocator& allocator() const { return *allocator_; }

 private:
  DeviceStream stream_at(int number) const { return streams_[static_cast<std::size_t>(number)]; }

  std::unique_ptr<CachingManagedAllocator> allocator_;
  std::vector<DeviceStream> streams_;
};

}  // namespace uvm::replay
