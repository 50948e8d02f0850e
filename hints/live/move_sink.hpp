// Takes the moves of a live plan on one device, which are sent when the plan has decided on all
// moves of a kernel. Each call is for one page of 2 MiB, by its number. Nothing that a move does or
// fails to do changes the contents of a block in use.
#pragma once

#include <cstdint>

#include "hints/live/use_log.hpp"

namespace uvm::live {

// Of the bytes of a page that comes to the device.
enum class Arrival : std::uint8_t {
  kCopied,
  kNew,      // they are nowhere else, so far as is known
  kDropped,  // nobody needs them
};

enum class Discarded : std::uint8_t {
  kYes,
  kInUse,    // the page is not free memory as a whole
  kRefused,  // the page, or its device, allows no discard
};

class MoveSink {
 public:
  virtual ~MoveSink() = default;

  // The page goes to the host, after the kernel that used it last.
  virtual void evict(std::uintptr_t page, KernelNumber last_use) = 0;
  // The same to another device, which has room for it.
  virtual void evict_to_peer(std::uintptr_t page, int peer, KernelNumber last_use) = 0;
  // A page that was evicted to a peer goes on to the host, and waits for nothing else.
  virtual void leave_peer(std::uintptr_t page) = 0;
  // The page's contents are given up, and its chunk without a copy, if the whole page is free
  // memory. `freed`: the newest kernel when it became free; 0: not known.
  virtual Discarded discard(std::uintptr_t page, KernelNumber freed) = 0;
  // The page's bytes stay on the host when it comes, until end_copy().
  virtual void keep_copy(std::uintptr_t page) = 0;
  // Before the page is written to.
  virtual void end_copy(std::uintptr_t page) = 0;
  // The page goes to the host, where the device uses it without faults, until end_in_place().
  virtual void use_in_place(std::uintptr_t page, KernelNumber last_use) = 0;
  virtual void end_in_place(std::uintptr_t page) = 0;
  // A page whose bytes are on the host gives up its chunk, after the kernel that used it last and
  // before the next page comes, or all have left. The calling thread may wait for that kernel.
  virtual void drop(std::uintptr_t page, KernelNumber last_use) = 0;
  // Pages that come from here on do so after the work so far of the stream at hand.
  virtual void hold_arrivals() = 0;
  // The page comes to the device, after the evictions so far. `need`: the kernel that uses it.
  virtual void bring(std::uintptr_t page, Arrival arrival, KernelNumber need) = 0;
  // The moves so far wait for none that follow: these are for later kernels.
  virtual void end_group() = 0;
  // Whether the device has executed the kernel that used the page last, and the page's last
  // eviction. Then the driver's answer about the page is final. Asks the driver.
  virtual bool is_settled(std::uintptr_t page, KernelNumber last_use) = 0;
  // Later work of the stream at hand waits for the page, if bring() was called for it.
  virtual void wait_for(std::uintptr_t page) = 0;
};

}  // namespace uvm::live
