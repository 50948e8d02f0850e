// Memory at addresses that its owner chooses. The owner reserves a range of addresses, which costs
// no memory, and is promised bytes of a device, which count against the limits from then on. It
// places blocks of promised bytes at free addresses of a range, and removes them. So a program's
// virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap) can be served.
//
// A placed block is a live block of the allocator like others: it moves, is planned, and appears in
// reports. Its pages serve no other request, because the range belongs to its owner.
//
// Sizes and addresses are multiples of 2 MiB. Thread-safe; the owner sees to it that two threads do
// not use the same range at a time. Functions throw std::out_of_range if the device does not exist,
// and std::bad_alloc without host memory, and then change nothing. None may be called with a lock
// of the allocator held, nor in a forked child.
#pragma once

#include <cstddef>

namespace uvm {

struct Engine;
struct Found;
struct Request;

class ReservedAddresses {
 public:
  explicit ReservedAddresses(Engine& engine) : engine_(engine) {}

  // Returns the begin of a range of free addresses, made in the context of the device; blocks of
  // any device may be placed there. Throws OutOfMemoryError if no range is long enough.
  char* reserve(int device, std::size_t size_bytes);
  // Ends the range that begins at `base`. No block may be placed there any more.
  void release(const char* base) noexcept;

  // Whether a block may be placed there now.
  bool is_free(const char* address, std::size_t size_bytes) const;

  // Promises bytes of the device. First makes room as an allocation does. Throws OutOfMemoryError
  // if a limit refuses them.
  void promise(int device, std::size_t size_bytes);
  // Promises bytes that replace others soon, without a check of the limits.
  void promise_beyond_limits(int device, std::size_t size_bytes) noexcept;
  // Takes back a promise of bytes that were not placed.
  void withdraw(int device, std::size_t size_bytes) noexcept;

  // Makes a live block of promised bytes at `address`. The default stream of the device counts as
  // its stream. Throws std::logic_error if addresses of the block are not free, and
  // OutOfMemoryError if the program thrashes and has to fail; then the promise remains.
  void place(int device, char* address, std::size_t size_bytes);
  // Frees the block, and its pages after all work that may use it; the promise has ended. Waits for
  // the device. During a capture the pages stay in use until a later call.
  void remove(char* address) noexcept;

 private:
  Found take_at(const Request& request, const char* address);
  void release_pages() noexcept;

  Engine& engine_;
};

}  // namespace uvm
