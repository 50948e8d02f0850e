// Stream-ordered pools. The attributes have the same numbers in all interfaces.
#pragma once

#include <optional>

#include "sim/engine/call_table.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// Before memory is taken or given back in the order of a stream. Graphs do not hold such nodes
// here: on a capturing stream the call is kNotSupported, and counted as unimplemented.
Status admit_pool_call(CallRecord& call, const std::optional<Stream>& stream);

Status get_pool_attribute(PoolHandle pool, int attribute, void* out);
Status set_pool_attribute(PoolHandle pool, int attribute, const void* value);

}  // namespace uvmsim::api
