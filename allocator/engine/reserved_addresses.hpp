// Memory at addresses that its owner chooses. The owner reserves a range of addresses, which costs
// no memory. The allocator promises the owner bytes of a device, which count against the limits
// from then on. The owner places blocks of promised bytes at free addresses of a range, and removes
// them. This serves a program's virtual memory management (cuMemAddressReserve, cuMemCreate,
// cuMemMap).
//
// A placed block is a live block of the allocator like others: its pages migrate by plan, and it
// appears in reports. Its pages serve no other request, because the range belongs to its owner.
//
// Sizes and addresses are multiples of 2 MiB. Thread-safe; the owner ensures that two threads do
// not use the same range at the same time. Functions throw std::out_of_range if the device does not
// exist, and std::bad_alloc if host memory runs out, and then change nothing. No function may be
// called while the caller holds a lock of the allocator, or in a forked child.
#pragma once

#include <cstddef>

namespace uvm {

struct Engine;
struct Found;
struct Request;

class ReservedAddresses {
 public:
  explicit ReservedAddresses(Engine& engine) : engine_(engine) {}

  // Returns the start of a range of free addresses, made in the context of the device. Blocks of
  // any device may be placed in the range. Throws OutOfMemoryError if no range is long enough.
  char* reserve(int device, std::size_t size_bytes);
  // Ends the range that begins at `base`. No block may be placed there any more.
  void release(const char* base) noexcept;

  // Returns whether a block may be placed at these addresses now.
  bool is_free(const char* address, std::size_t size_bytes) const;

  // Promises bytes of the device. First makes room as an allocation does. Throws OutOfMemoryError
  // if a limit refuses these bytes.
  void promise(int device, std::size_t size_bytes);
  // Promises bytes that will soon replace other bytes, without a check of the limits.
  void promise_beyond_limits(int device, std::size_t size_bytes) noexcept;
  // Takes back a promise of bytes that were not placed.
  void withdraw(int device, std::size_t size_bytes) noexcept;

  // Makes a live block of promised bytes at `address`. The block belongs to the default stream of
  // the device. Throws std::logic_error if addresses of the block are not free, and
  // OutOfMemoryError if the settings make a thrashing program fail; then the promise remains.
  void place(int device, char* address, std::size_t size_bytes);
  // Frees the block, and frees its pages after all work that may use the block. place() has ended
  // the promise for these bytes. Waits for the device. During a capture the pages stay in use until
  // a later call.
  void remove(char* address) noexcept;

 private:
  Found take_at(const Request& request, const char* address);
  void release_pages() noexcept;

  Engine& engine_;
};

}  // namespace uvm
