// Describes a simulated machine: the memory of its devices, the rules of its driver, and its costs.
// The default is the ideal machine; other machines are TOML files (sim/profiles/). A plain value.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "sim/engine/cost_model.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/machine_rules.hpp"

namespace uvmsim {

enum class Profile {
  kDiscrete,    // devices have their own memory
  kIntegrated,  // devices share the host's memory, and may access ordinary memory
  kHmm,         // discrete, and devices access the program's ordinary memory by page faults
  kCoherent,    // discrete, and devices access ordinary memory through the host's page tables, over
                // a coherent link
};

struct MachineProfile {
  std::string name = "UVM Simulated Device";  // the name of each device
  Profile memory = Profile::kDiscrete;
  std::size_t capacity_bytes = std::size_t{8} << 30;  // of each device
  bool concurrent_managed_access = true;
  // Of an integrated machine: devices access the program's ordinary memory through the host's page
  // tables.
  bool integrated_has_host_page_tables = false;
  MachineRules rules;
  Costs costs;

  bool shares_host_memory() const { return memory == Profile::kIntegrated; }
  bool is_coherent() const { return memory == Profile::kCoherent; }
  bool has_host_page_tables() const {
    return is_coherent() || (shares_host_memory() && integrated_has_host_page_tables);
  }
  // Returns whether devices can access the program's ordinary memory.
  bool reaches_ordinary_memory() const { return memory == Profile::kHmm || has_host_page_tables(); }
  // Returns whether copies from another device are faster than copies from the host, as over
  // NVLink.
  bool has_fast_peer_links() const {
    return costs.between_devices_bytes_per_ns > costs.to_device_bytes_per_ns;
  }
};

// Sets the rules that follow from the kind of memory.
UVMSIM_EXPORT void follow_memory_kind(MachineProfile* profile);

// Returns the bytes of the host's memory; if devices share this memory, at most their capacity.
UVMSIM_EXPORT std::size_t host_capacity_bytes(const MachineProfile& profile);

// A profile cannot be used. The message names the file, the key and the accepted values.
class ProfileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads a profile. Throws ProfileError unless the file has exactly the keys that such a machine
// needs.
UVMSIM_EXPORT MachineProfile read_profile(const std::string& path);

// Returns the path of the profile with this name, or the argument itself if it has a slash or ends
// with ".toml". Named profiles are in the folder `profiles` next to the library.
UVMSIM_EXPORT std::string profile_path(const std::string& name_or_path);

}  // namespace uvmsim
