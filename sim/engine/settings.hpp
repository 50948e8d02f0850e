// The simulator's environment variables, read once, at the latest when the machine is made. A
// malformed value costs one line on stderr that names the variable, the value and what is accepted;
// the default is used then.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <uvmalloc/sim/engine/export.hpp>

namespace uvmsim {

enum class Profile {
  kDiscrete,    // devices have memory of their own
  kIntegrated,  // they share the host's
  kHmm,         // as discrete, and they reach the program's ordinary memory, by page faults
  kCoherent,    // the same through the host's page tables, over a coherent link
};

struct Settings {
  int devices = 1;                                    // UVMSIM_DEVICES, 0 to 32
  std::size_t capacity_bytes = std::size_t{8} << 30;  // UVMSIM_CAPACITY, from 2 MiB
  Profile profile = Profile::kDiscrete;               // UVMSIM_PROFILE

  static Settings from_environment();
};

// Those of this process, read at the first call.
UVMSIM_EXPORT const Settings& process_settings();

// "512M", "1.5GiB", "1T", "1048576": a number and an optional suffix K, M, G or T, with or without
// "iB" or "B", as in the command `uvmalloc`. Suffixes are powers of 1024. Returns nothing for other
// texts, for fractions of a byte, and for sizes that do not fit.
UVMSIM_EXPORT std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace uvmsim
