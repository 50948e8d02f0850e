// Stream-ordered pools. The attributes have the same numbers in all interfaces.
#pragma once

#include <optional>

#include "sim/engine/call_table.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// Call this before a stream-ordered allocation or free. Simulated graphs have no nodes for these
// calls, so on a capturing stream this returns kNotSupported and counts the call as unimplemented.
Status admit_pool_call(CallRecord& call, const std::optional<Stream>& stream);

Status get_pool_attribute(PoolHandle pool, int attribute, void* out);
Status set_pool_attribute(PoolHandle pool, int attribute, const void* value);

}  // namespace uvmsim::api
