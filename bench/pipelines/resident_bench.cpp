// resident_bench: prints as JSON the bytes over the link of a simulated device while tensors live
// on it. The figures come from the machine's counters of copies. libcuda.so.1 must be the
// simulator's.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pipelines/plans/bound_plan.hpp"
#include "pipelines/plans/compiled_plan.hpp"
#include "pipelines/tensors/tensor_bindings.hpp"

#include "bench/pipelines/simulated_backend.hpp"

namespace {

using namespace uvm;  // NOLINT(google-build-using-namespace): a program of one file
using bench::SimulatedBackend;
using bench::SimulatedDevices;

const TensorType kVector{sizeof(float), {1 << 18}};
const TensorType kScalar{sizeof(float), {1}};
constexpr int kEpochs = 10, kBatches = 20;

std::map<std::string, ResidentTensor*> bind(TensorBindings* bindings,
                                            const std::vector<std::string>& names) {
  std::map<std::string, ResidentTensor*> bound;
  for (const std::string& name : names) bound[name] = &bindings->at(name);
  return bound;
}

// Runs the training loop of Glow's document: each batch goes in, the loss comes out, and each step
// writes the weights. Returns the bytes over the link without those of batches and losses, in
// multiples of the weights.
double weight_crossings(const SimulatedDevices& devices, const SimulatedBackend& backend) {
  TensorBindings bindings;
  bindings.add("x", kVector);
  bindings.add("w", kVector);
  bindings.add("loss", kScalar);
  const std::vector<std::string> names{"x", "w", "loss"};
  BoundPlan step(
      CompiledPlan::compile(
          backend, {.types = {{"x", kVector}, {"w", kVector}, {"g", kVector}, {"loss", kScalar}},
                    .operations = {{"add", {"x", "w"}, {"g"}},
                                   {"descend", {"w", "g"}, {"w"}},
                                   {"sum", {"g"}, {"loss"}}},
                    .bound = names}),
      0, bind(&bindings, names));
  const uvmsim_counters before = devices.counters();
  float w = 0;  // value of each element; the batches are ones
  for (int batch = 0; batch < kEpochs * kBatches; ++batch) {
    auto* const x = static_cast<float*>(bindings.at("x").mutable_host_data());
    for (std::int64_t at = 0; at < kVector.shape[0]; ++at) x[at] = 1;
    step.run();
    bindings.at("loss").transfer_from_device(false);
    w = w - (1 + w) / 2;
  }
  bindings.ensure_outputs_available();
  if (*static_cast<const float*>(bindings.at("w").host_data()) != w) {
    throw std::logic_error("the weights are wrong");
  }
  const uvmsim_counters after = devices.counters();
  if (after.kernels == before.kernels) throw std::logic_error("nothing ran on the device");
  const double crossed =
      static_cast<double>(after.copy_bytes - before.copy_bytes) +
      static_cast<double>(after.migrated_bytes_to_device - before.migrated_bytes_to_device) +
      static_cast<double>(after.migrated_bytes_to_host - before.migrated_bytes_to_host);
  const double of_batches = static_cast<double>(kEpochs * kBatches) *
                            static_cast<double>(kVector.size_bytes() + kScalar.size_bytes());
  return (crossed - of_batches) / static_cast<double>(kVector.size_bytes());
}

// Runs two partitions on one device; the second reads the output of the first. Returns the number
// of copies while the second ran.
std::uint64_t colocated_transfers(const SimulatedDevices& devices,
                                  const SimulatedBackend& backend) {
  TensorBindings bindings;
  for (const char* name : {"x", "a", "y"}) bindings.add(name, kVector);
  const auto doubling = [&](const std::string& from, const std::string& to) {
    const std::vector<std::string> names{from, to};
    return BoundPlan(CompiledPlan::compile(backend, {.types = {{from, kVector}, {to, kVector}},
                                                     .operations = {{"double", {from}, {to}}},
                                                     .bound = names}),
                     0, bind(&bindings, names));
  };
  BoundPlan first = doubling("x", "a");
  BoundPlan second = doubling("a", "y");
  *static_cast<float*>(bindings.at("x").mutable_host_data()) = 3;
  first.run();
  const std::uint64_t before = devices.counters().copy_calls;
  second.run();
  const std::uint64_t copies = devices.counters().copy_calls - before;
  bindings.ensure_outputs_available();
  if (*static_cast<const float*>(bindings.at("y").host_data()) != 12) {
    throw std::logic_error("the second partition read something else");
  }
  return copies;
}

}  // namespace

int main() {
  const SimulatedDevices devices;
  const SimulatedBackend backend(devices);
  const nlohmann::ordered_json all{{"weight_crossings", weight_crossings(devices, backend)},
                                   {"colocated_transfers", colocated_transfers(devices, backend)}};
  std::printf("%s\n", all.dump(1).c_str());
  return 0;
}
