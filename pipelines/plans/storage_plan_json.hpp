// Reads and writes plans as JSON. `upper` of a variable is the RFC's var_upper_bound, `most_bytes`
// of a storage is the RFC's max_bytes.
//
//   {"uvmalloc_storage_plan": 1, "alignment_bytes": 512,
//    "variables": [{"name": "n", "lower": 1, "upper": 128}, {"name": "m", "expression": "2 * n"}],
//    "storages": [{"id": "x", "size": "4 * n", "first_use": 0, "end_use": 2, "offset": 0,
//    "most_bytes": 512},
//                 {"id": "y", "size": "4 * m", "first_use": 1, "end_use": 3, "part_of": "x", ...}]}
//
// A description has no `offset` and no `most_bytes`. Readers accept only version 1, and refuse
// unknown and repeated keys.
#pragma once

#include <string>
#include <string_view>

#include "pipelines/plans/storage_plan.hpp"

namespace uvm {

inline constexpr int kPlanVersion = 1;

std::string plan_to_json(const StoragePlan& plan);

// Both throw PlanError or ExpressionError, which says where the fault is, for a string that is not
// JSON, another version, a missing or unknown key, a wrong value, and everything that StoragePlan
// refuses.
StoragePlan plan_from_json(std::string_view text);
PlanDescription description_from_json(std::string_view text);

}  // namespace uvm
