#include "sim/engine/machine_profile.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string_view>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "sim/engine/settings.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

constexpr double kNsPerUs = 1000;
constexpr double kMostRate = 1e9;
constexpr double kMostUs = 1e9;

enum class Need { kAlways, kOwnMemory, kNever };  // tells which machines need the key

struct Figure {
  std::string_view key;
  double Costs::*value;
  double scale;  // the factor from the file's unit to the unit in Costs
  Need need;
};

constexpr auto kFigures = std::to_array<Figure>({
    {"kernels.memory_gb_per_s", &Costs::kernel_bytes_per_ns, 1, Need::kAlways},
    {"kernels.copy_gb_per_s", &Costs::copy_bytes_per_ns, 1, Need::kAlways},
    {"kernels.launch_us", &Costs::launch_ns, kNsPerUs, Need::kAlways},
    {"links.to_device_gb_per_s", &Costs::to_device_bytes_per_ns, 1, Need::kOwnMemory},
    {"links.to_host_gb_per_s", &Costs::to_host_bytes_per_ns, 1, Need::kOwnMemory},
    {"links.between_devices_gb_per_s", &Costs::between_devices_bytes_per_ns, 1, Need::kOwnMemory},
    {"links.remote_gb_per_s", &Costs::remote_bytes_per_ns, 1, Need::kOwnMemory},
    {"driver.zero_gb_per_s", &Costs::zero_bytes_per_ns, 1, Need::kOwnMemory},
    {"driver.host_zero_gb_per_s", &Costs::host_zero_bytes_per_ns, 1, Need::kAlways},
    {"driver.call_us", &Costs::call_ns, kNsPerUs, Need::kAlways},
    {"driver.prefetch_block_us", &Costs::prefetch_block_ns, kNsPerUs, Need::kOwnMemory},
    {"driver.populate_block_us", &Costs::populate_block_ns, kNsPerUs, Need::kOwnMemory},
    {"driver.evict_block_us", &Costs::evict_block_ns, kNsPerUs, Need::kOwnMemory},
    {"driver.reclaim_block_us", &Costs::reclaim_block_ns, kNsPerUs, Need::kOwnMemory},
    {"driver.fault_batch_us", &Costs::fault_batch_ns, kNsPerUs, Need::kAlways},
    {"driver.fault_block_us", &Costs::fault_block_ns, kNsPerUs, Need::kAlways},
    {"driver.advice_us", &Costs::advice_ns, kNsPerUs, Need::kAlways},
    {"driver.advice_block_us", &Costs::advice_block_ns, kNsPerUs, Need::kOwnMemory},
    {"driver.discard_block_us", &Costs::discard_block_ns, kNsPerUs, Need::kOwnMemory},
});

constexpr std::array<std::string_view, kOperationTypes> kPeaks = {
    "kernels.float64_tflops", "kernels.float32_tflops", "kernels.tensor_float32_tflops",
    "kernels.float16_tflops", "kernels.float8_tflops"};

class Reader {
 public:
  Reader(std::string path, const toml::table& table) : path_(std::move(path)) {
    flatten("", table);
  }

  [[noreturn]] void fail(std::string_view key, const std::string& problem,
                         const std::string& accepted) const {
    throw ProfileError(path_ + ": " + std::string(key) + " " + problem + "; accepted: " + accepted);
  }

  const toml::node* find(std::string_view key) {
    used_.emplace(key);
    const auto found = nodes_.find(key);
    return found == nodes_.end() ? nullptr : found->second;
  }

  std::optional<double> number(std::string_view key, double most, Need need, Profile memory) {
    const std::string accepted =
        "a number above 0, at most " + std::to_string(static_cast<long long>(most));
    const toml::node* node = find(key);
    if (node == nullptr) {
      const bool is_needed =
          need == Need::kAlways || (need == Need::kOwnMemory && memory != Profile::kIntegrated);
      if (is_needed) fail(key, "is missing", accepted);
      return std::nullopt;
    }
    const std::optional<double> value = node->value<double>();
    if (!value || !std::isfinite(*value) || *value <= 0 || *value > most)
      fail(key, "is not usable", accepted);
    return value;
  }

  std::uint64_t count(std::string_view key, std::uint64_t least, std::uint64_t most) {
    const std::string accepted =
        "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    const toml::node* node = find(key);
    if (node == nullptr) fail(key, "is missing", accepted);
    const std::optional<std::int64_t> value = node->value_exact<std::int64_t>();
    if (!value || *value < 0 || static_cast<std::uint64_t>(*value) < least ||
        static_cast<std::uint64_t>(*value) > most) {
      fail(key, "is not usable", accepted);
    }
    return static_cast<std::uint64_t>(*value);
  }

  bool flag(std::string_view key) {
    const toml::node* node = find(key);
    const std::optional<bool> value = node == nullptr ? std::nullopt : node->value_exact<bool>();
    if (!value) fail(key, node == nullptr ? "is missing" : "is not usable", "true or false");
    return *value;
  }

  std::string text(std::string_view key, const std::string& accepted) {
    const toml::node* node = find(key);
    const std::optional<std::string> value =
        node == nullptr ? std::nullopt : node->value_exact<std::string>();
    if (!value || value->empty())
      fail(key, node == nullptr ? "is missing" : "is not usable", accepted);
    return *value;
  }

  std::size_t size(std::string_view key) {
    const std::string accepted = "a size from 2MiB to 64TiB, such as \"80GiB\"";
    const std::optional<std::size_t> bytes = parse_bytes(text(key, accepted));
    if (!bytes || *bytes < kBlockBytes || *bytes > kLargestRequestBytes)
      fail(key, "is not usable", accepted);
    return *bytes;
  }

  void refuse_others() const {
    for (const auto& [key, node] : nodes_) {
      if (used_.contains(key)) continue;
      throw ProfileError(path_ + ": " + key +
                         " is not a key of a profile; accepted: those of sim/profiles/README.md");
    }
  }

 private:
  void flatten(const std::string& prefix, const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix + std::string(key.str());
      if (const toml::table* inner = node.as_table()) {
        flatten(path + ".", *inner);
      } else {
        nodes_.emplace(path, &node);
      }
    }
  }

  std::string path_;
  std::map<std::string, const toml::node*, std::less<>> nodes_;
  std::set<std::string, std::less<>> used_;
};

Profile memory_of(Reader& reader) {
  const std::string accepted = "discrete, integrated, hmm, coherent";
  const std::string word = reader.text("memory", accepted);
  const std::optional<Profile> memory = parse_memory(word);
  if (!memory) reader.fail("memory", "is \"" + word + "\"", accepted);
  return *memory;
}

FaultRules fault_rules(Reader& reader) {
  FaultRules rules;
  rules.granularity_pages = reader.count("driver.fault_granularity_pages", 1, kPagesPerBlock);
  if ((rules.granularity_pages & (rules.granularity_pages - 1)) != 0)
    reader.fail("driver.fault_granularity_pages", "is not usable", "a power of two from 1 to 512");
  rules.density_percent =
      static_cast<unsigned>(reader.count("driver.prefetch_density_percent", 0, 100));
  rules.first_touch_fills_block = reader.flag("driver.first_touch_fills_block");
  rules.faults_at_once = reader.count("driver.faults_at_once", 0, kPagesPerBlock);
  rules.batch_faults = reader.count("driver.batch_faults", 1, 4096);
  return rules;
}

MachineProfile profile_of(Reader& reader) {
  MachineProfile profile;
  profile.name = reader.text("name", "the machine's name");
  profile.memory = memory_of(reader);
  profile.capacity_bytes = reader.size("capacity");
  profile.concurrent_managed_access = reader.flag("concurrent_managed_access");
  if (profile.shares_host_memory())
    profile.integrated_has_host_page_tables = reader.flag("host_page_tables");
  profile.rules.memory.host_bytes = reader.size("host_memory");
  profile.rules.faults = fault_rules(reader);
  profile.rules.thrashing.detects = reader.flag("driver.detects_thrashing");
  profile.rules.memory.access_counter_threshold =
      reader.count("driver.access_counter_threshold", 0, 65536);
  for (const Figure& figure : kFigures) {
    const double most = figure.scale == kNsPerUs ? kMostUs : kMostRate;
    if (const auto value = reader.number(figure.key, most, figure.need, profile.memory))
      profile.costs.*figure.value = *value * figure.scale;
  }
  for (std::size_t type = 0; type < kOperationTypes; ++type) {
    if (const auto peak = reader.number(kPeaks[type], kMostRate, Need::kNever, profile.memory))
      profile.costs.operations_per_ns[type] = *peak * 1000;
  }
  reader.refuse_others();
  return profile;
}

}  // namespace

MachineProfile read_profile(const std::string& path) {
  const toml::parse_result parsed = toml::parse_file(path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const std::uint32_t line = error.source().begin.line;  // 0 if the file cannot be read
    throw ProfileError(path + (line == 0 ? "" : ":" + std::to_string(line)) + ": " +
                       std::string(error.description()) +
                       "; accepted: a file in TOML, as sim/profiles/README.md describes it");
  }
  Reader reader(path, parsed.table());
  return profile_of(reader);
}

void follow_memory_kind(MachineProfile* profile) {
  MemoryRules& rules = profile->rules.memory;
  rules.shares_host = profile->memory == Profile::kIntegrated;
  rules.uses_host_pages = profile->memory == Profile::kCoherent;
  rules.ordinary_by_page = profile->memory == Profile::kHmm;
}

std::size_t host_capacity_bytes(const MachineProfile& profile) {
  const MemoryRules& rules = profile.rules.memory;
  return rules.shares_host ? std::min(rules.host_bytes, profile.capacity_bytes) : rules.host_bytes;
}

std::string profile_path(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".toml"))
    return name_or_path;
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&profile_path), &found) == 0) return name_or_path;
  const std::string library = found.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "profiles/" + name_or_path + ".toml";
}

}  // namespace uvmsim
