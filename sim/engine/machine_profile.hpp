// All that a simulated machine is: what memory its devices have, the rules of its driver, and its
// costs. The default is the ideal machine. Others are read from files in TOML (sim/profiles/). A
// value.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "sim/engine/cost_model.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/machine_rules.hpp"

namespace uvmsim {

enum class Profile {
  kDiscrete,    // devices have memory of their own
  kIntegrated,  // they share the host's
  kHmm,         // as discrete, and they reach the program's ordinary memory, by page faults
  kCoherent,    // the same through the host's page tables, over a coherent link
};

struct MachineProfile {
  std::string name = "UVM Simulated Device";  // of each device
  Profile memory = Profile::kDiscrete;
  std::size_t capacity_bytes = std::size_t{8} << 30;  // of each device
  bool concurrent_managed_access = true;
  MachineRules rules;
  Costs costs;
};

// Sets the rules of memory that follow from its kind.
UVMSIM_EXPORT void follow_memory_kind(MachineProfile* profile);

// What the host has. Where devices share it, no more than they have.
UVMSIM_EXPORT std::size_t host_capacity_bytes(const MachineProfile& profile);

// Names the file, the key and what is accepted.
class ProfileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads a file, which must hold every figure that such a machine needs and nothing else. Throws
// ProfileError.
UVMSIM_EXPORT MachineProfile read_profile(const std::string& path);

// The file of a profile by its name, or the path itself where it has a slash or ends with ".toml".
// Named profiles lie beside the library, in the folder `profiles`.
UVMSIM_EXPORT std::string profile_path(const std::string& name_or_path);

}  // namespace uvmsim
