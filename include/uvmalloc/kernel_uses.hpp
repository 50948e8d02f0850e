// Reports which memory the kernels of a program use, so that moves can be planned while the program
// uses more memory than a device has. At other times the functions do nothing. Reports move memory
// and never change its contents (docs/reference/planning.md). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/use_range.hpp>

namespace uvm {

class KernelUses {
 public:
  explicit KernelUses(Engine& engine) : engine_(&engine) {}

  // Returns whether a plan needs reports of uses now. The listener is called at each change, on the
  // thread that causes the change. It must not call the allocator.
  bool wanted() const noexcept;
  void set_listener(std::function<void(bool wanted)> listener);

  // Call this before a kernel that uses these ranges is launched on `stream` of `device`. Each
  // range must be inside one block; other ranges are ignored. For a captured graph pass the ranges
  // of all its kernels (live::joined_uses), even those in no live block. If programs take turns on
  // the device (UVMALLOC_SHARE), the function waits for this program's turn.
  void note(int device, StreamHandle stream, std::span<const live::UseRange> uses,
            live::Launch launch) noexcept;
  // Same as note(), for one range, on the device that uses its block. `access`: live::kReads,
  // kWrites or both. If wanted(), returns whether the address is in a live block; otherwise true.
  bool note(const void* address, std::size_t size_bytes, StreamHandle stream, std::uint8_t access);
  // Same as note(), on the device that uses the block of the first range. If an address is in no
  // live block, returns the first such address and records nothing; otherwise returns nullptr.
  const void* note(StreamHandle stream, std::span<const live::UseRange> uses, live::Launch launch);

  // Marks the end of a step of the program. Steps are also detected without marks.
  void step_boundary() noexcept;

 private:
  Engine* engine_;
};

inline KernelUses CachingManagedAllocator::kernel_uses() const {
  return KernelUses(*engine_);
}

}  // namespace uvm
