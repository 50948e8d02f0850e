// The contexts that programs make, in addition to each device's primary one: ordinary contexts and
// green ones. A context's number is its device's number plus a multiple of kMostDevices. Memory and
// events of a green context belong to the primary context, and its streams end with it. Any thread
// may call.
#pragma once

#include "sim/engine/export.hpp"

namespace uvmsim {

class UVMSIM_EXPORT Contexts {
 public:
  enum class Kind { kOrdinary, kGreen };

  // The new context's number; kNoContext if the device has the most contexts possible.
  static int open(int device, Kind kind);
  // Destroys the context with its memory, streams and events. Its number can be reused.
  static void close(int number);

  static bool exists(int number);
  static bool is_green(int number);

  // The address that stands for a context in a vendor's interface, also for a primary context.
  static void* handle_of(int number);
  // The number that belongs to an address; kNoContext if it is no handle. The context may have
  // ended.
  static int number_of(const void* handle);
};

}  // namespace uvmsim
