// The interface through which moves make room on a device. The engine implements it. Moves belong
// to a layer below the engine, so they cannot call the engine directly.
#pragma once

#include "allocator/state/request.hpp"

namespace uvm {

class MakesRoom {
 public:
  virtual ~MakesRoom() = default;

  // Makes room for a block on a device that has reached its limit: gives back cached memory of the
  // device, and calls pressure callbacks. Throws OutOfMemoryError. Takes the state lock.
  virtual void make_room_on_device(const Request& request) = 0;
};

}  // namespace uvm
