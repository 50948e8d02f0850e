// Moves are below what makes room for them. They call up through this.
#pragma once

#include "allocator/state/request.hpp"

namespace uvm {

class MakesRoom {
 public:
  virtual ~MakesRoom() = default;

  // Makes room for a block on a device whose limit has none: gives back cached memory there, and
  // calls pressure callbacks. Throws OutOfMemoryError. Takes the state lock.
  virtual void make_room_on_device(const Request& request) = 0;
};

}  // namespace uvm
