// Virtual time: what work costs in the cost model, and how lanes order work.
#include "sim/engine/cost_model.hpp"
#include "sim/engine/timeline.hpp"

#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

Costs simple_costs() {
  Costs costs;
  costs.kernel_bytes_per_ns = 1000;
  costs.launch_ns = 100;
  costs.operations_per_ns[static_cast<std::size_t>(OperationType::kFloat32)] = 10;
  costs.to_device_bytes_per_ns = 2;
  costs.to_host_bytes_per_ns = 4;
  costs.between_devices_bytes_per_ns = 8;
  costs.remote_bytes_per_ns = 1;
  costs.evict_block_ns = 7;
  costs.reclaim_block_ns = 5;
  costs.fault_batch_ns = 1000;
  costs.fault_block_ns = 10;
  costs.prefetch_block_ns = 3;
  return costs;
}

CostModel simple_model() {
  return {simple_costs(), 256, 500000};
}

TEST(TimeRulesTest, AKernelTakesTheLongerOfItsBytesAndItsOperations) {
  const CostModel model = simple_model();
  EXPECT_EQ(model.kernel_ns(5000, 0, OperationType::kFloat32), 105U);
  EXPECT_EQ(model.kernel_ns(5000, 400, OperationType::kFloat32), 140U);
  EXPECT_EQ(model.kernel_ns(5000, 400, OperationType::kFloat16), 105U)
      << "a type without a peak costs nothing";
  EXPECT_EQ(model.kernel_ns(5000, 400, OperationType::kTensorFloat32), 140U)
      << "but for this one, which float32 stands in for";
}

TEST(TimeRulesTest, FaultsCostByBatchAndByBlock) {
  PlacementWork work;
  for (int block = 0; block < 65; ++block) work.count_faults(0, 4);
  EXPECT_EQ(simple_model().phases(work).service_ns, 2 * 1000U + 65 * 10U);
}

TEST(TimeRulesTest, AnEvictionCostsItsCopyAndItsWork) {
  PlacementWork work;
  work.copied_chunks = 2;
  work.reclaimed_chunks = 1;
  work.evicted_bytes = 400;
  const Phases phases = simple_model().phases(work);
  EXPECT_EQ(phases.driver_ns, 2 * 7U + 5U);
  EXPECT_EQ(phases.to_host_ns, 100U);
}

TEST(TimeRulesTest, FourPartsOfABatchRunAtOnceAndTheSlowestEndsIt) {
  Timeline timeline(1, 0);
  const auto end_of = [&](const std::vector<Phases>& parts) {
    Stream& stream = *timeline.find_stream(0, timeline.create_stream(0, 0, false, 0));
    timeline.submit_batch(stream, parts);
    return timeline.completion_ns(stream);
  };
  const Phases driver_alone{.driver_ns = 10};
  EXPECT_EQ(end_of({}), 0U);
  EXPECT_EQ(end_of({4, driver_alone}), 10U);
  EXPECT_EQ(end_of({5, driver_alone}), 20U);
  EXPECT_EQ(end_of({driver_alone, {.driver_ns = 500}, driver_alone}), 500U);
  EXPECT_EQ(end_of({3, {.driver_ns = 10, .to_device_ns = 100}}), 310U) << "copies share their lane";
  EXPECT_EQ(end_of({{.to_device_ns = 50}}), 360U) << "which is busy until 310";
}

TEST(TimeRulesTest, RemoteAccessSlowsTheKernelItself) {
  PlacementWork work;
  work.remote_bytes = 300;
  EXPECT_EQ(simple_model().phases(work, 100).kernel_ns, 300U);
  EXPECT_EQ(simple_model().phases(work, 1000).kernel_ns, 1000U);
}

TEST(TimeRulesTest, AThrottledDeviceSleepsALapse) {
  PlacementWork work;
  work.throttles = 2;
  EXPECT_EQ(simple_model().phases(work).service_ns, 1000000U);
}

TEST(TimeRulesTest, BytesBetweenDevicesTakeTheirLinkAlone) {
  PlacementWork work;
  work.between_devices_bytes = 800;
  work.between_devices_to = 1;
  Phases phases = simple_model().phases(work);
  EXPECT_EQ(phases.between_devices_ns, 100U);
  EXPECT_EQ(phases.between_devices_to, 1);
  EXPECT_EQ(phases.to_device_ns, 0U);
  phases = simple_model().copy_phases({}, 800, CopyWay::kBetweenDevices);
  EXPECT_EQ(phases.between_devices_ns, 100U);
  EXPECT_EQ(phases.to_device_ns, 0U);
}

class Lanes {
 public:
  Stream& stream() { return *timeline.find_stream(0, timeline.create_stream(0, 0, false, 0)); }
  Timeline timeline{2, 1000};  // has the two devices of a RuledMachine
};

TEST(TimeRulesTest, APrefetchOnAnotherStreamHidesBehindAKernel) {
  Lanes lanes;
  Stream& compute = lanes.stream();
  Stream& transfer = lanes.stream();
  lanes.timeline.submit(compute, Phases{.kernel_ns = 1000});
  lanes.timeline.submit(transfer, Phases{.to_device_ns = 800});
  EXPECT_EQ(lanes.timeline.device_completion_ns(0), 1000U);
}

TEST(TimeRulesTest, AnEvictionIsOnTheCriticalPathOfAFault) {
  Lanes lanes;
  Stream& compute = lanes.stream();
  lanes.timeline.submit(
      compute, Phases{.service_ns = 20, .to_host_ns = 300, .to_device_ns = 200, .kernel_ns = 1000});
  EXPECT_EQ(lanes.timeline.device_completion_ns(0), 1520U);
}

TEST(TimeRulesTest, CopiesOfOneDirectionShareItsEngineAndOthersDoNot) {
  Lanes lanes;
  for (Stream* stream : {&lanes.stream(), &lanes.stream()})
    lanes.timeline.submit(*stream, Phases{.to_device_ns = 500});
  EXPECT_EQ(lanes.timeline.device_completion_ns(0), 1000U);
  lanes.timeline.submit(lanes.stream(), Phases{.to_host_ns = 900});
  EXPECT_EQ(lanes.timeline.device_completion_ns(0), 1000U);
}

TEST(TimeRulesTest, BytesOfOtherDevicesComeOnALaneOfTheDeviceThatGetsThem) {
  Timeline timeline{2, 1000};
  const auto submit = [&](const Phases& phases) {
    Stream& stream = *timeline.find_stream(0, timeline.create_stream(0, 0, false, 0));
    timeline.submit(stream, phases);
    return stream.busy_until_ns;
  };
  submit({.to_device_ns = 800});
  submit({.to_host_ns = 800});
  EXPECT_EQ(submit({.between_devices_ns = 100}), 100U);
  EXPECT_EQ(submit({.between_devices_ns = 100, .between_devices_to = 0}), 200U);
  EXPECT_EQ(submit({.between_devices_ns = 100, .between_devices_to = 1}), 100U);
  EXPECT_EQ(submit({.between_devices_ns = 100, .between_devices_to = 1}), 200U);
}

TEST(TimeRulesTest, AdviceWaitsForFaultsAndHoldsTheNextOnesBack) {
  Lanes lanes;
  lanes.timeline.submit(lanes.stream(), Phases{.service_ns = 700});
  lanes.timeline.run_exclusively(100);
  EXPECT_EQ(lanes.timeline.now_ns(), 800U);
  Stream& other = lanes.stream();
  lanes.timeline.submit(other, Phases{.service_ns = 50});
  EXPECT_EQ(other.busy_until_ns, 850U);
}

TEST(TimeRulesTest, AThousandRandomStepsTakeTheSameTimeEachTime) {
  const auto run = [] {
    RuledMachine machine;
    Lanes lanes;
    Stream& stream = lanes.stream();
    std::uint32_t state = 1;
    const auto pick = [&](std::size_t below) {
      state = state * 1664525 + 1013904223;
      return static_cast<std::size_t>(state >> 8) % below;
    };
    for (int step = 0; step < 1000; ++step) {
      const std::size_t block = pick(kArenaBlocks);
      if (pick(2) == 0) {
        EXPECT_EQ(machine.write(static_cast<int>(pick(2)), block, pick(500), 1 + pick(12)),
                  Status::kOk);
      } else {
        EXPECT_EQ(machine.prefetch(static_cast<int>(pick(3)) - 1, block), Status::kOk);
      }
      lanes.timeline.submit(stream, simple_model().phases(machine.take_work(), 10));
    }
    return lanes.timeline.device_completion_ns(0);
  };
  const std::uint64_t first = run();
  EXPECT_GT(first, 1000000U);
  EXPECT_EQ(run(), first);
}

}  // namespace
}  // namespace uvmsim::test
