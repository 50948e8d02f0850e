// The simulator's environment variables, read once, at the latest when the machine is made. A
// malformed value costs one line on stderr that names the variable, the value and what is accepted;
// the default is used then.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_profile.hpp"

namespace uvmsim {

struct Settings {
  int devices = 1;  // UVMSIM_DEVICES, 0 to 32
  // UVMSIM_MACHINE; UVMSIM_CAPACITY, from 2 MiB, UVMSIM_HOST_MEMORY and UVMSIM_PROFILE change parts
  // of it. A machine that cannot be read has no devices: another one would give wrong answers.
  MachineProfile machine;
  bool cpu_touches = false;  // UVMSIM_CPU_TOUCHES, 0 or 1: whether the host's own touches are seen

  static Settings from_environment();
};

// "discrete" and so on. Nothing for other words.
std::optional<Profile> parse_memory(std::string_view text);

// Those of this process, read at the first call.
UVMSIM_EXPORT const Settings& process_settings();

// "512M", "1.5GiB", "1T", "1048576": a number and an optional suffix K, M, G or T, with or without
// "iB" or "B", as in the command `uvmalloc`. Suffixes are powers of 1024. Returns nothing for other
// texts, for fractions of a byte, and for sizes that do not fit.
UVMSIM_EXPORT std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace uvmsim
