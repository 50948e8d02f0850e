#include "pipelines/plans/storage_plan_json.hpp"

#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace uvm {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersionKey = "uvmalloc_storage_plan";

// Returns a value of an object, by its key; `where` names the object in messages.
const Json& value_of(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw PlanError(fmt::format("{} has no '{}'", where, key));
  return *found;
}

std::int64_t number_of(const Json& object, const char* key, const std::string& where) {
  const Json& value = value_of(object, key, where);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
    throw PlanError(fmt::format("{}: '{}' is not a whole number of 64 bits", where, key));
  }
  return value.get<std::int64_t>();
}

std::string text_of(const Json& object, const char* key, const std::string& where) {
  const Json& value = value_of(object, key, where);
  if (!value.is_string()) throw PlanError(fmt::format("{}: '{}' is not a string", where, key));
  return value.get<std::string>();
}

void check_object(const Json& object, std::initializer_list<std::string_view> keys,
                  const std::string& where) {
  if (!object.is_object()) throw PlanError(fmt::format("{} is not an object", where));
  for (const auto& [key, value] : object.items()) {
    bool is_known = false;
    for (const std::string_view known : keys) is_known = is_known || key == known;
    if (!is_known) throw PlanError(fmt::format("{} has the unknown key '{}'", where, key));
  }
}

const Json& list_of(const Json& object, const char* key) {
  const Json& value = value_of(object, key, "the plan");
  if (!value.is_array()) throw PlanError(fmt::format("the plan: '{}' is not a list", key));
  return value;
}

PlanVariable variable_of(const Json& object, std::size_t number) {
  const std::string where = fmt::format("variable {}", number);
  check_object(object, {"name", "lower", "upper", "expression"}, where);
  PlanVariable variable;
  variable.name = text_of(object, "name", where);
  if (object.contains("expression")) {
    variable.expression = text_of(object, "expression", where);
    if (variable.expression.empty() || object.contains("lower") || object.contains("upper")) {
      throw PlanError(fmt::format("{} has a range beside its expression, or an empty one", where));
    }
  } else {
    variable.lower = number_of(object, "lower", where);
    variable.upper = number_of(object, "upper", where);
  }
  return variable;
}

PlanStorage storage_of(const Json& object, std::size_t number, bool is_placed) {
  const std::string where = fmt::format("storage {}", number);
  if (is_placed) {
    check_object(object, {"id", "size", "first_use", "end_use", "part_of", "offset", "most_bytes"},
                 where);
  } else {
    check_object(object, {"id", "size", "first_use", "end_use", "part_of"}, where);
  }
  PlanStorage storage;
  storage.id = text_of(object, "id", where);
  storage.size = text_of(object, "size", where);
  storage.first_use = number_of(object, "first_use", where);
  storage.end_use = number_of(object, "end_use", where);
  if (object.contains("part_of")) storage.part_of = text_of(object, "part_of", where);
  return storage;
}

// JSON does not say which of two equal keys is valid, so a repeated key is an error.
Json parse(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // keys of the objects that are open
  return Json::parse(text, [&keys](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw PlanError(
          fmt::format("the plan has the key '{}' twice in one object", value.get<std::string>()));
    return true;
  });
}

PlanDescription read(std::string_view text, std::vector<StoragePlan::Place>* places) {
  Json all;
  try {
    all = parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw PlanError(fmt::format("the plan is not JSON: {}", error.what()));
  }
  check_object(all, {kVersionKey, "alignment_bytes", "variables", "storages"}, "the plan");
  const std::int64_t version = number_of(all, kVersionKey, "the plan");
  if (version != kPlanVersion) {
    throw PlanError(
        fmt::format("the plan has the version {}; accepted: {}", version, kPlanVersion));
  }
  PlanDescription description;
  description.alignment_bytes = number_of(all, "alignment_bytes", "the plan");
  for (const Json& object : list_of(all, "variables")) {
    description.variables.push_back(variable_of(object, description.variables.size()));
  }
  for (const Json& object : list_of(all, "storages")) {
    const std::size_t number = description.storages.size();
    description.storages.push_back(storage_of(object, number, places != nullptr));
    if (places == nullptr) continue;
    const std::string where = fmt::format("storage {}", number);
    places->push_back({number_of(object, "offset", where), number_of(object, "most_bytes", where)});
  }
  return description;
}

}  // namespace

std::string plan_to_json(const StoragePlan& plan) {
  const PlanDescription& description = plan.description();
  Json all{{kVersionKey, kPlanVersion}, {"alignment_bytes", description.alignment_bytes}};
  all["variables"] = Json::array();
  all["storages"] = Json::array();
  for (const PlanVariable& variable : description.variables) {
    Json object{{"name", variable.name}};
    if (variable.is_derived()) {
      object["expression"] = variable.expression;
    } else {
      object["lower"] = variable.lower;
      object["upper"] = variable.upper;
    }
    all["variables"].push_back(std::move(object));
  }
  for (std::size_t number = 0; number < description.storages.size(); ++number) {
    const PlanStorage& storage = description.storages[number];
    Json object{{"id", storage.id},
                {"size", storage.size},
                {"first_use", storage.first_use},
                {"end_use", storage.end_use}};
    if (!storage.part_of.empty()) object["part_of"] = storage.part_of;
    object["offset"] = plan.places()[number].offset;
    object["most_bytes"] = plan.places()[number].most_bytes;
    all["storages"].push_back(std::move(object));
  }
  return all.dump(1, ' ', false, Json::error_handler_t::replace);
}

StoragePlan plan_from_json(std::string_view text) {
  std::vector<StoragePlan::Place> places;
  PlanDescription description = read(text, &places);
  return StoragePlan::with_places(std::move(description), std::move(places));
}

PlanDescription description_from_json(std::string_view text) {
  return read(text, nullptr);
}

}  // namespace uvm
