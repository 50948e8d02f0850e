// Parses settings of groups, such as the value of UVMALLOC_GROUPS. Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/groups.hpp>

namespace uvm {

struct NamedGroupSettings {
  std::string name;
  GroupSettings settings;
};

// Says in messages what parse_groups() accepts.
inline constexpr const char* kGroupsAccepted =
    "NAME:KEY=VALUE,KEY=VALUE;NAME:... with priority=NUMBER, floor=SIZE, idle=TIME (30s, 500ms, "
    "2m), limit=SIZE, pinned=1, copies=auto, kept or none, file=FOLDER";

// 1 to 64 letters, digits and "_", "-", ".", "/", ":".
bool is_group_name(std::string_view name);
// Parses a string such as "llm:priority=2,floor=4GiB,idle=30s;image:idle=5s". The last colon before
// the first "=" ends the name. Returns nullopt for any other string, and if a name appears twice.
std::optional<std::vector<NamedGroupSettings>> parse_groups(std::string_view text);
// Returns whether such a string has settings of the group `name`.
bool names_group(std::string_view text, std::string_view name);
// Parses a time such as "30s", "500ms", "2m", "1h" or "2.5". A number without a unit is in seconds.
std::optional<std::chrono::nanoseconds> parse_time(std::string_view text);

}  // namespace uvm
