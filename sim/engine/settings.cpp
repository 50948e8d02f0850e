#include "sim/engine/settings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

constexpr int kMostDevicesAccepted = 32;

void reject(const char* variable, const char* value, const char* accepted, const char* used) {
  std::fprintf(stderr, "uvmsim: %s is '%s'; accepted: %s; using %s\n", variable, value, accepted,
               used);
}

std::optional<std::size_t> parse_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<Profile> parse_memory(std::string_view text) {
  if (text == "discrete") return Profile::kDiscrete;
  if (text == "integrated") return Profile::kIntegrated;
  if (text == "hmm") return Profile::kHmm;
  if (text == "coherent") return Profile::kCoherent;
  return std::nullopt;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto whole = parse_number(text.substr(0, digits));
  std::string_view suffix = text.substr(digits);
  double fraction = 0;
  if (suffix.starts_with('.')) {
    const auto [end, error] = std::from_chars(suffix.data(), suffix.data() + suffix.size(),
                                              fraction, std::chars_format::fixed);
    const auto length = static_cast<std::size_t>(end - suffix.data());
    if (error != std::errc{} || length < 2) return std::nullopt;
    suffix.remove_prefix(length);
  }
  suffix.remove_prefix(std::min(suffix.find_first_not_of(' '), suffix.size()));
  std::string unit(suffix);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  static constexpr std::string_view kUnits = "KMGT";
  const std::size_t power = unit.empty() ? std::string_view::npos : kUnits.find(unit.front());
  const std::string_view rest = std::string_view(unit).substr(power < kUnits.size() ? 1 : 0);
  if (rest != "" && rest != "B" && (rest != "IB" || power >= kUnits.size())) return std::nullopt;
  const unsigned shift = power < kUnits.size() ? 10 * (static_cast<unsigned>(power) + 1) : 0;
  if (!whole || *whole > std::numeric_limits<std::size_t>::max() >> shift) return std::nullopt;
  if (shift == 0 && text.find('.') != std::string_view::npos) return std::nullopt;
  return (*whole << shift) +
         static_cast<std::size_t>(std::ldexp(fraction, static_cast<int>(shift)));
}

namespace {

void read_size(const char* variable, const char* default_text, std::size_t* bytes) {
  const char* text = secure_getenv(variable);
  if (text == nullptr) return;
  const auto size = parse_bytes(text);
  if (size && *size >= kBlockBytes && *size <= kLargestRequestBytes) {
    *bytes = *size;
  } else {
    reject(variable, text, "a size from 2MiB to 64TiB, such as 512MiB, 8G, 1.5GiB or plain bytes",
           default_text);
  }
}

// Returns false if the machine cannot be read.
bool read_machine(MachineProfile* machine) {
  const char* name = secure_getenv("UVMSIM_MACHINE");
  if (name == nullptr || *name == '\0') return true;
  try {
    *machine = read_profile(profile_path(name));
    return true;
  } catch (const ProfileError& error) {
    std::fprintf(stderr, "uvmsim: UVMSIM_MACHINE is '%s': %s; the machine has no devices\n", name,
                 error.what());
    return false;
  }
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  const bool has_machine = read_machine(&settings.machine);
  if (const char* text = secure_getenv("UVMSIM_DEVICES")) {
    const auto devices = parse_number(text);
    if (devices && *devices <= kMostDevicesAccepted) {
      settings.devices = static_cast<int>(*devices);
    } else {
      reject("UVMSIM_DEVICES", text, "a whole number from 0 to 32", "1");
    }
  }
  MachineProfile& machine = settings.machine;
  const bool is_ideal = secure_getenv("UVMSIM_MACHINE") == nullptr;
  read_size("UVMSIM_CAPACITY", is_ideal ? "8GiB" : "the machine's own", &machine.capacity_bytes);
  read_size("UVMSIM_HOST_MEMORY", is_ideal ? "no limit" : "the machine's own",
            &machine.rules.memory.host_bytes);
  if (const char* text = secure_getenv("UVMSIM_PROFILE")) {
    if (const auto memory = parse_memory(text)) {
      machine.memory = *memory;
    } else {
      reject("UVMSIM_PROFILE", text, "discrete, integrated, hmm, coherent", "discrete");
    }
  }
  follow_memory_kind(&machine);
  if (const char* text = secure_getenv("UVMSIM_CPU_TOUCHES")) {
    settings.cpu_touches = std::string_view(text) == "1";
    if (!settings.cpu_touches && std::string_view(text) != "0")
      reject("UVMSIM_CPU_TOUCHES", text, "0, 1", "0");
  }
  if (!has_machine) settings.devices = 0;
  return settings;
}

const Settings& process_settings() {
  static const Settings settings = Settings::from_environment();
  return settings;
}

}  // namespace uvmsim
