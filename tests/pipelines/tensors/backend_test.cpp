// The use cases of Glow's "Refactor Backend interface", each as a test.
#include "pipelines/tensors/backend.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pipelines/plans/bound_plan.hpp"
#include "pipelines/plans/compiled_plan.hpp"
#include "pipelines/tensors/tensor_bindings.hpp"

#include "tests/support/host_devices.hpp"
#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using testing::HostBackend;
using testing::HostDevices;
using testing::message_of;

const TensorType kVector{sizeof(float), {8}};

// y = 2 (2 x + w)
PlanProgram affine() {
  return {.types = {{"x", kVector}, {"w", kVector}, {"a", kVector}, {"b", kVector}, {"y", kVector}},
          .operations = {{"double", {"x"}, {"a"}},
                         {"add", {"a", "w"}, {"b"}},
                         {"double", {"b"}, {"y"}}},
          .bound = {"x", "w", "y"}};
}

void set(ResidentTensor& tensor, float value) {
  auto* const data = static_cast<float*>(tensor.mutable_host_data());
  std::fill_n(data, tensor.size_bytes() / sizeof(float), value);
}
float get(ResidentTensor& tensor) {
  tensor.transfer_from_device(false);
  return *static_cast<const float*>(tensor.host_data());
}

struct Job {
  explicit Job(float value) { set(x, value); }
  ResidentTensor x{"x", kVector}, y{"y", kVector};
};

TEST(CompiledPlan, ActivationsShareOneArenaAndBoundTensorsDoNotLieInIt) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto plan = CompiledPlan::compile(backend, affine());
  EXPECT_TRUE(plan->is_activation("a"));
  EXPECT_FALSE(plan->is_activation("w"));
  EXPECT_EQ(plan->activations().arena_bytes(), 1024) << "a and b are live at the same step";
}

TEST(CompiledPlan, WrongProgramsAreNamed) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto fault = [&](const std::function<void(PlanProgram&)>& change) {
    PlanProgram program = affine();
    change(program);
    return message_of([&] { CompiledPlan::compile(backend, program); });
  };
  EXPECT_EQ(fault([](auto& program) { program.operations[1].kernel = "conv"; }),
            "operation 1: backend 'test' has no kernel 'conv'");
  EXPECT_EQ(fault([](auto& program) { program.types.erase("b"); }), "tensor 'b' has no type");
  EXPECT_EQ(fault([](auto& program) {
              program.bound = {"w", "y"};
            }),
            "operation 0 reads tensor 'x' before it is written");
  EXPECT_EQ(fault([](auto& program) { program.bound.push_back("z"); }),
            "no operation uses the bound tensor 'z'");
}

TEST(BoundPlan, WrongBindingsAreNamed) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto plan = CompiledPlan::compile(backend, affine());
  ResidentTensor x("x", kVector), w("w", kVector), wrong("y", {sizeof(float), {9}});
  EXPECT_EQ(message_of([&] {
              BoundPlan(plan, 0, {{"x", &x}, {"w", &w}});
            }),
            "no tensor is bound to 'y'");
  EXPECT_EQ(message_of([&] {
              BoundPlan(plan, 0, {{"x", &x}, {"w", &w}, {"y", &wrong}});
            }),
            "the tensor bound to 'y' has another type");
  EXPECT_EQ(message_of([&] {
              BoundPlan(plan, 1, {{"x", &x}, {"w", &w}, {"y", &x}});
            }),
            "backend 'test' has no device 1; it has 1");
}

TEST(BackendUseCases, ParallelInferenceCompilesOnceAndRunsOnManyThreads) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto plan = CompiledPlan::compile(backend, affine());
  ResidentTensor w("w", kVector);
  set(w, 5);
  w.transfer_to_device(devices, 0);  // once, for all threads
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      Job job(static_cast<float>(number));
      BoundPlan bound(plan, 0, {{"x", &job.x}, {"w", &w}, {"y", &job.y}});
      for (int run = 0; run < 50; ++run) {
        set(job.x, static_cast<float>(number + run));
        bound.run();
        wrong += get(job.y) != static_cast<float>(4 * (number + run) + 10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(w.transfers(), (TransferCounts{1, 0, 0}));
}

TEST(BackendUseCases, EachSocketHasItsOwnCopyOfTheWeightsAndOneCompilationServesAll) {
  const HostDevices sockets(2);
  const HostBackend backend(sockets);
  const auto plan = CompiledPlan::compile(backend, affine());
  std::vector<std::unique_ptr<ResidentTensor>> weights;
  for (int socket = 0; socket < 2; ++socket) {
    weights.push_back(std::make_unique<ResidentTensor>("w", kVector));
    set(*weights.back(), 3);
    weights.back()->transfer_to_device(sockets, socket);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const int socket = number % 2;
      Job job(static_cast<float>(number));
      BoundPlan bound(plan, socket, {{"x", &job.x}, {"w", weights[socket].get()}, {"y", &job.y}});
      for (int run = 0; run < 20; ++run) bound.run();
      wrong += get(job.y) != static_cast<float>(4 * number + 6);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const auto& weight : weights) EXPECT_EQ(weight->transfers(), (TransferCounts{1, 0, 0}));
}

// x -> (device 0) a = 2 x -> (device 1) y = a + w. The activation moves from device to device.
struct TwoParts {
  PlanProgram first{.types = {{"x", kVector}, {"a", kVector}},
                    .operations = {{"double", {"x"}, {"a"}}},
                    .bound = {"x", "a"}};
  PlanProgram second{.types = {{"a", kVector}, {"w", kVector}, {"y", kVector}},
                     .operations = {{"add", {"a", "w"}, {"y"}}},
                     .bound = {"a", "w", "y"}};
};

TEST(BackendUseCases, AProgramIsPipelinedOverTwoDevices) {
  const HostDevices devices(2);
  const HostBackend backend(devices);
  const TwoParts parts;
  const auto first = CompiledPlan::compile(backend, parts.first);
  const auto second = CompiledPlan::compile(backend, parts.second);
  ResidentTensor w("w", kVector);
  set(w, 1);
  ResidentTensor a0("a", kVector), a1("a", kVector);
  ResidentTensor* const activations[] = {&a0, &a1};
  // Two jobs are active at a time: while the second device runs one, the first runs the next.
  std::vector<std::unique_ptr<Job>> jobs;
  for (int number = 0; number < 6; ++number) {
    jobs.push_back(std::make_unique<Job>(static_cast<float>(number)));
    BoundPlan(first, 0, {{"x", &jobs.back()->x}, {"a", activations[number % 2]}}).run();
    if (number == 0) continue;
    Job& earlier = *jobs[static_cast<std::size_t>(number - 1)];
    BoundPlan(second, 1, {{"a", activations[(number - 1) % 2]}, {"w", &w}, {"y", &earlier.y}})
        .run();
    EXPECT_EQ(get(earlier.y), static_cast<float>(2 * (number - 1) + 1));
  }
  EXPECT_EQ(a0.transfers(), (TransferCounts{0, 0, 3})) << "from peer to peer, never over the host";
  EXPECT_EQ(a1.transfers(), (TransferCounts{0, 0, 2}));
  EXPECT_EQ(w.transfers(), (TransferCounts{1, 0, 0}));
}

TEST(BackendUseCases, PartitionsOnOneDeviceHandAnActivationOverWithoutATransfer) {
  const HostDevices devices(2);
  const HostBackend backend(devices);
  const TwoParts parts;
  ResidentTensor a("a", kVector), w("w", kVector);
  Job job(4);
  set(w, 1);
  BoundPlan(CompiledPlan::compile(backend, parts.first), 1, {{"x", &job.x}, {"a", &a}}).run();
  BoundPlan(CompiledPlan::compile(backend, parts.second), 1, {{"a", &a}, {"w", &w}, {"y", &job.y}})
      .run();
  EXPECT_EQ(get(job.y), 9);
  EXPECT_EQ(a.transfers(), TransferCounts{});
}

TEST(BackendUseCases, SeveralGraphsOnOneDeviceCopyOnlyInputsAndOutputs) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto affine_plan = CompiledPlan::compile(backend, affine());
  const auto sum_plan =
      CompiledPlan::compile(backend, {.types = {{"x", kVector}, {"s", {sizeof(float), {1}}}},
                                      .operations = {{"sum", {"x"}, {"s"}}},
                                      .bound = {"x", "s"}});
  ResidentTensor w("w", kVector), s("s", {sizeof(float), {1}});
  set(w, 2);
  Job job(0);
  BoundPlan first(affine_plan, 0, {{"x", &job.x}, {"w", &w}, {"y", &job.y}});
  BoundPlan other(sum_plan, 0, {{"x", &job.x}, {"s", &s}});
  for (int run = 0; run < 5; ++run) {
    set(job.x, static_cast<float>(run));
    first.run();
    other.run();
    EXPECT_EQ(get(job.y), static_cast<float>(4 * run + 4));
    EXPECT_EQ(get(s), static_cast<float>(8 * run));
  }
  EXPECT_EQ(w.transfers(), (TransferCounts{1, 0, 0}));
  EXPECT_EQ(job.x.transfers(), (TransferCounts{5, 0, 0}));
  EXPECT_EQ(job.y.transfers(), (TransferCounts{0, 5, 0}));
}

// Glow, "Device Resident and Specific Tensors", Training: weights move to the device before the
// first run and back after the last.
TEST(BackendUseCases, WeightsCrossTheLinkTwiceInATraining) {
  const HostDevices devices;
  const HostBackend backend(devices);
  const auto step = CompiledPlan::compile(
      backend, {.types = {{"x", kVector}, {"w", kVector}, {"g", kVector}, {"loss", {4, {1}}}},
                .operations = {{"add", {"x", "w"}, {"g"}},
                               {"descend", {"w", "g"}, {"w"}},
                               {"sum", {"g"}, {"loss"}}},
                .bound = {"x", "w", "loss"}});
  TensorBindings bindings;
  for (const char* name : {"x", "w"}) bindings.add(name, kVector);
  bindings.add("loss", {4, {1}});
  set(bindings.at("w"), 100);
  BoundPlan bound(
      step, 0,
      {{"x", &bindings.at("x")}, {"w", &bindings.at("w")}, {"loss", &bindings.at("loss")}});
  float model = 100;
  for (int batch = 0; batch < 40; ++batch) {
    set(bindings.at("x"), static_cast<float>(batch % 4));
    bound.run();
    const float gradient = static_cast<float>(batch % 4) + model;
    model -= gradient / 2;
    float loss = 0;
    for (int element = 0; element < 8; ++element) loss += gradient;
    EXPECT_EQ(get(bindings.at("loss")), loss);
  }
  bindings.ensure_outputs_available();
  EXPECT_EQ(*static_cast<const float*>(bindings.at("w").host_data()), model);
  EXPECT_EQ(bindings.at("w").transfers(), (TransferCounts{1, 1, 0}));
}

TEST(BackendUseCases, OneProcessUsesTwoKindsOfHardwareAtOnce) {
  const HostDevices one(1, "one"), two(1, "two");
  const HostBackend first(one, "first"), second(two, "second");
  const TwoParts parts;
  ResidentTensor a("a", kVector), w("w", kVector);
  Job job(4);
  set(w, 1);
  BoundPlan(CompiledPlan::compile(first, parts.first), 0, {{"x", &job.x}, {"a", &a}}).run();
  BoundPlan(CompiledPlan::compile(second, parts.second), 0, {{"a", &a}, {"w", &w}, {"y", &job.y}})
      .run();
  EXPECT_EQ(get(job.y), 9);
  EXPECT_EQ(a.transfers(), (TransferCounts{1, 1, 0})) << "by way of the host";
}

TEST(BackendRegistry, ABackendOfASharedObjectIsFoundByItsName) {
  const std::vector<std::string> before = backend_names();
  load_backends(UVMALLOC_TEST_BACKEND);
  const auto backend = open_backend("of a shared object");
  EXPECT_EQ(backend->device_count(), 2);
  Job job(3);
  ResidentTensor w("w", kVector);
  BoundPlan(CompiledPlan::compile(*backend, affine()), 1, {{"x", &job.x}, {"w", &w}, {"y", &job.y}})
      .run();
  EXPECT_EQ(get(job.y), 12);
  job.y.release();
  job.x.release();
  w.release();
  EXPECT_EQ(message_of([] { open_backend("of a machine without it"); }),
            "backend 'of a machine without it': there is no such device");
  EXPECT_EQ(message_of([] { load_backends(UVMALLOC_TEST_BACKEND); }),
            std::string(UVMALLOC_TEST_BACKEND) + " adds no backend of a new name");
}

TEST(BackendRegistry, NamesAreTakenOnceAndUnknownOnesAreNamed) {
  const auto none = [](std::string*) { return std::unique_ptr<Backend>(); };
  EXPECT_TRUE(add_backend("taken", none));
  EXPECT_FALSE(add_backend("taken", none));
  EXPECT_FALSE(add_backend("", none));
  EXPECT_FALSE(add_backend("no factory", {}));
  EXPECT_EQ(message_of([] { open_backend("unknown"); }).find("no backend is named 'unknown'"), 0u);
  EXPECT_NE(message_of([] { load_backends("/no/such.so"); }).find("/no/such.so cannot be loaded"),
            std::string::npos);
}

}  // namespace
}  // namespace uvm
