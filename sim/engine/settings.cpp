#include <uvmalloc/sim/engine/settings.hpp>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>

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
  const std::size_t digits = text.find_first_not_of("0123456789");
  std::string_view suffix = digits == std::string_view::npos ? "" : text.substr(digits);
  const auto number = parse_number(text.substr(0, digits));
  if (!number) return std::nullopt;
  unsigned shift = 0;
  if (!suffix.empty()) {
    const std::size_t power = std::string_view{"KMGT"}.find(suffix.front());
    if (power == std::string_view::npos) return std::nullopt;
    shift = 10 * (static_cast<unsigned>(power) + 1);
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "B" && suffix != "iB") return std::nullopt;
  }
  if (*number > std::numeric_limits<std::size_t>::max() >> shift) return std::nullopt;
  return *number << shift;
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
             "bytes from 2M to 64T, with suffix K, M, G, T or KiB, MiB, GiB, TiB", "8GiB");
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

}  // namespace uvmsim
