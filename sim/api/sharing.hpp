// Events and memory that other processes open, in terms that the interfaces of CUDA and HIP share.
// The interfaces only specify that a handle has 64 bytes; `handle` points to these bytes.
#pragma once

#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// The functions that import return kInvalidValue if `out` is null or the bytes are not such a
// handle.
Status export_memory(const void* address, char* handle);
// `flags` must be the only flag that the interfaces define.
Status import_memory(int device, const char* handle, unsigned flags, void** out);
Status export_event(EventHandle event, char* handle);
Status import_event(int device, const char* handle, EventHandle* out);

}  // namespace uvmsim::api
