#include "pipelines/plans/plan_calls.h"

#include <algorithm>
#include <span>
#include <string>

#include <fmt/format.h>

#include "pipelines/call_errors.hpp"
#include "pipelines/plans/storage_plan.hpp"
#include "pipelines/plans/storage_plan_json.hpp"

struct uvmalloc_plan {
  uvm::StoragePlan plan;
};

uvmalloc_plan* uvmalloc_plan_make(const char* description, double effort, char* error,
                                  size_t capacity) {
  return uvm::call_guarded<uvmalloc_plan*>(nullptr, error, capacity, [&] {
    uvm::PackEffort pack_effort;
    pack_effort.steps = static_cast<std::size_t>(static_cast<double>(pack_effort.steps) *
                                                 std::clamp(effort, 0.0, 1e6));
    return new uvmalloc_plan{
        uvm::StoragePlan::make(uvm::description_from_json(description), pack_effort)};
  });
}

uvmalloc_plan* uvmalloc_plan_from_json(const char* text, char* error, size_t capacity) {
  return uvm::call_guarded<uvmalloc_plan*>(
      nullptr, error, capacity, [&] { return new uvmalloc_plan{uvm::plan_from_json(text)}; });
}

void uvmalloc_plan_destroy(uvmalloc_plan* plan) {
  delete plan;
}

int64_t uvmalloc_plan_to_json(const uvmalloc_plan* plan, char* buffer, size_t capacity) {
  return uvm::call_guarded<int64_t>(-1, nullptr, 0, [&] {
    const std::string text = uvm::plan_to_json(plan->plan);
    uvm::write_text(text, buffer, capacity);
    return static_cast<int64_t>(text.size() + 1);
  });
}

int64_t uvmalloc_plan_arena_bytes(const uvmalloc_plan* plan) {
  return plan->plan.arena_bytes();
}

int64_t uvmalloc_plan_lower_bound_bytes(const uvmalloc_plan* plan) {
  return plan->plan.lower_bound_bytes();
}

size_t uvmalloc_plan_storage_count(const uvmalloc_plan* plan) {
  return plan->plan.places().size();
}

void uvmalloc_plan_places(const uvmalloc_plan* plan, int64_t* offsets, int64_t* most_bytes) {
  for (const uvm::StoragePlan::Place& place : plan->plan.places()) {
    *offsets++ = place.offset;
    *most_bytes++ = place.most_bytes;
  }
}

int uvmalloc_plan_sizes(const uvmalloc_plan* plan, int64_t* values, size_t value_count,
                        int64_t* sizes, char* error, size_t capacity) {
  return uvm::call_guarded(-1, error, capacity, [&] {
    const std::size_t variables = plan->plan.description().variables.size();
    if (value_count != variables) {
      throw uvm::PlanError(
          fmt::format("there are {} values for {} variables", value_count, variables));
    }
    plan->plan.derive({values, value_count});
    for (std::size_t storage = 0; storage < plan->plan.places().size(); ++storage) {
      sizes[storage] = plan->plan.size_bytes(storage, {values, value_count});
    }
    return 0;
  });
}
