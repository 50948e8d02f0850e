// libFuzzer's entry: any bytes are a plan in JSON. An accepted plan has places that fit, and is
// read back unchanged. All other bytes raise one of the two errors.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "pipelines/plans/storage_plan_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count);

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  try {
    const uvm::StoragePlan plan = uvm::plan_from_json(text);
    for (const auto& place : plan.places()) {
      require(place.offset >= 0 && place.offset + place.most_bytes <= plan.arena_bytes(),
              "a storage lies outside the arena");
    }
    const std::string written = uvm::plan_to_json(plan);
    require(uvm::plan_to_json(uvm::plan_from_json(written)) == written,
            "a plan that was written is read back as another");
  } catch (const std::invalid_argument&) {
    return 0;
  }
  return 0;
}
