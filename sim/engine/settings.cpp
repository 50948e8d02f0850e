#include <uvmalloc/sim/engine/settings.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include <uvmalloc/sim/engine/units.hpp>

namespace uvmsim {
namespace {

constexpr int kMostDevices = 32;

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

std::optional<Profile> parse_profile(std::string_view text) {
  if (text == "discrete") return Profile::kDiscrete;
  if (text == "integrated") return Profile::kIntegrated;
  if (text == "hmm") return Profile::kHmm;
  if (text == "coherent") return Profile::kCoherent;
  return std::nullopt;
}

}  // namespace

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

Settings Settings::from_environment() {
  Settings settings;
  if (const char* text = std::getenv("UVMSIM_DEVICES")) {
    const auto devices = parse_number(text);
    if (devices && *devices <= kMostDevices) {
      settings.devices = static_cast<int>(*devices);
    } else {
      reject("UVMSIM_DEVICES", text, "a whole number from 0 to 32", "1");
    }
  }
  if (const char* text = std::getenv("UVMSIM_CAPACITY")) {
    const auto capacity = parse_bytes(text);
    if (capacity && *capacity >= kBlockBytes && *capacity <= kLargestRequestBytes) {
      settings.capacity_bytes = *capacity;
    } else {
      reject("UVMSIM_CAPACITY", text,
             "a size from 2MiB to 64TiB, such as 512MiB, 8G, 1.5GiB or plain bytes", "8GiB");
    }
  }
  if (const char* text = std::getenv("UVMSIM_PROFILE")) {
    if (const auto profile = parse_profile(text)) {
      settings.profile = *profile;
    } else {
      reject("UVMSIM_PROFILE", text, "discrete, integrated, hmm, coherent", "discrete");
    }
  }
  return settings;
}

const Settings& process_settings() {
  static const Settings settings = Settings::from_environment();
  return settings;
}

}  // namespace uvmsim
