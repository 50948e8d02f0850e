// The simulator's environment variables, read once, at the latest when the machine is created. A
// malformed value prints one line on stderr that names the variable, the value and the accepted
// values; the default then applies.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_profile.hpp"

namespace uvmsim {

struct Settings {
  int devices = 1;  // UVMSIM_DEVICES, 0 to 32
  // From UVMSIM_MACHINE. UVMSIM_CAPACITY (at least 2 MiB), UVMSIM_HOST_MEMORY and UVMSIM_PROFILE
  // change parts of the machine. If its profile cannot be read, there are no devices, because
  // another machine would give wrong results.
  MachineProfile machine;
  bool cpu_touches = false;  // UVMSIM_CPU_TOUCHES, 0 or 1: tracks the touches by the host

  bool has_device(int device) const { return device >= 0 && device < devices; }

  static Settings from_environment();
};

// Parses "discrete" and the other kinds. Returns nullopt for other words.
std::optional<Profile> parse_memory(std::string_view text);

// The settings of this process, read at the first call.
UVMSIM_EXPORT const Settings& process_settings();

// Parses "512M", "1.5GiB", "1T", "1048576": a number and an optional suffix K, M, G or T, with or
// without "iB" or "B", as in the command `uvmalloc`. Suffixes are powers of 1024. Returns nullopt
// for other strings, for fractions of a byte, and for sizes that do not fit.
UVMSIM_EXPORT std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace uvmsim
