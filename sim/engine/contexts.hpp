// The contexts that programs make, in addition to each device's primary context: ordinary contexts
// and green contexts. A context's number is its device's number plus a multiple of kMostDevices.
// Memory and events of a green context belong to the primary context, and its streams end with it.
// Any thread may call.
#pragma once

#include "sim/engine/export.hpp"

namespace uvmsim {

class UVMSIM_EXPORT Contexts {
 public:
  enum class Kind { kOrdinary, kGreen };

  // Makes a context and returns its number; kNoContext if the device cannot have more contexts.
  static int open(int device, Kind kind);
  // Destroys the context with its memory, streams and events. Its number can be reused.
  static void close(int number);

  static bool exists(int number);
  static bool is_green(int number);

  // Returns the address that represents a context, also a primary context, in a vendor's interface.
  static void* handle_of(int number);
  // Returns the number of the context with that address; kNoContext if the address is not a handle.
  // The context may have ended.
  static int number_of(const void* handle);
};

}  // namespace uvmsim
