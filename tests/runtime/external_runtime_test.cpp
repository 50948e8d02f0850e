// Tables of operations: which are accepted, what is passed on, and what works without an operation.
#include "runtime/external/external_runtime.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <uvmalloc/registry.hpp>
#include "runtime/external/operations_table.hpp"

namespace uvm::external {
namespace {

// Sets what a table returns, and records its calls.
struct Recorder {
  int code = 0;  // every operation returns this
  int devices = 2;
  int migrates = 1;
  int initialized = 0;
  std::vector<std::string> calls;

  template <class... Words>
  int note(const char* call, Words... words) {
    calls.push_back(fmt::format("{} {}", call, fmt::join(std::make_tuple(words...), " ")));
    return code;
  }
};

Recorder& recorder(void* context) {
  return *static_cast<Recorder*>(context);
}

std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}
void* address(std::uintptr_t number) {
  return reinterpret_cast<void*>(number);
}

// Returns a table with the required groups only.
uvmalloc_runtime_operations required() {
  uvmalloc_runtime_operations table{};
  table.struct_bytes = sizeof table;
  table.version = UVMALLOC_RUNTIME_VERSION;
  table.initialize = [](void* context) { return recorder(context).code; };
  table.device_count = [](void* context, int* out) {
    *out = recorder(context).devices;
    return 0;
  };
  table.describe = [](void* context, int device, uvmalloc_runtime_device* out) {
    std::memset(out->name, 'x', sizeof out->name);  // without a terminating zero
    out->total_bytes = 100;
    out->managed_memory = out->concurrent_managed_access = out->discard = 1;
    out->migrates_on_fault = recorder(context).migrates;
    out->compute_major = 7;
    return recorder(context).note("describe", device, out->struct_bytes);
  };
  table.memory_figures = [](void* context, int device, uint64_t* free, uint64_t* total) {
    *free = 30;
    *total = 100;
    return recorder(context).note("memory_figures", device);
  };
  table.pointer_attributes = [](void* context, const void* where, uvmalloc_runtime_pointer* out) {
    *out = {static_cast<int>(number(where) / 16), 1};
    return recorder(context).note("pointer_attributes", number(where));
  };
  table.allocate_managed = [](void* context, int device, size_t bytes, void** out) {
    *out = address(4096);
    return recorder(context).note("allocate_managed", device, bytes);
  };
  table.free_managed = [](void* context, int device, void* where) {
    return recorder(context).note("free_managed", device, number(where));
  };
  table.copy = [](void* context, int device, void* to, const void* from, size_t bytes, void* on) {
    return recorder(context).note("copy", device, number(to), number(from), bytes, number(on));
  };
  table.create_stream = [](void* context, int device, void** out) {
    *out = address(64);
    return recorder(context).note("create_stream", device);
  };
  table.destroy_stream = [](void* context, int device, void* on) {
    return recorder(context).note("destroy_stream", device, number(on));
  };
  table.synchronize_stream = [](void* context, int device, void* on) {
    return recorder(context).note("synchronize_stream", device, number(on));
  };
  table.stream_wait_event = [](void* context, int device, void* on, void* event) {
    return recorder(context).note("stream_wait_event", device, number(on), number(event));
  };
  table.create_event = [](void* context, int device, void** out) {
    *out = address(80);
    return recorder(context).note("create_event", device);
  };
  table.destroy_event = [](void* context, int device, void* event) {
    return recorder(context).note("destroy_event", device, number(event));
  };
  table.record_event = [](void* context, int device, void* event, void* on) {
    return recorder(context).note("record_event", device, number(event), number(on));
  };
  table.query_event = [](void* context, int device, void* event) {
    return recorder(context).note("query_event", device, number(event));
  };
  table.synchronize_event = [](void* context, int device, void* event) {
    return recorder(context).note("synchronize_event", device, number(event));
  };
  table.synchronize_device = [](void* context, int device) {
    return recorder(context).note("synchronize_device", device);
  };
  table.error_kind = [](void*, int code) { return code - 100; };
  table.error_name = [](void*, int code) { return code == 999 ? nullptr : "TEST_ERROR"; };
  return table;
}

uvmalloc_runtime_operations complete() {
  uvmalloc_runtime_operations table = required();
  table.advise = [](void* context, int device, void* at, size_t bytes, int advice, int place) {
    return recorder(context).note("advise", device, number(at), bytes, advice, place);
  };
  table.prefetch = [](void* context, int device, void* at, size_t bytes, int to, void* on) {
    return recorder(context).note("prefetch", device, number(at), bytes, to, number(on));
  };
  table.discard = [](void* context, int device, void* at, size_t bytes, void* on) {
    return recorder(context).note("discard", device, number(at), bytes, number(on));
  };
  table.is_capturing = [](void* context, int device, void* on, int* out) {
    *out = 1;
    return recorder(context).note("is_capturing", device, number(on));
  };
  table.has_context = [](void*, int device) { return device == 1 ? 1 : 0; };
  table.is_present = [](void*) { return 1; };
  table.is_initialized = [](void* context) { return recorder(context).initialized; };
  return table;
}

class ExternalRuntimeTest : public ::testing::Test {
 protected:
  std::unique_ptr<DeviceRuntime> open(const uvmalloc_runtime_operations& table) {
    auto runtime = ExternalRuntime::open("recorder", table, &recorder_, &reason_);
    recorder_.calls.clear();
    return runtime;
  }
  using Calls = std::vector<std::string>;

  Recorder recorder_;
  std::string reason_;
};

// ---- which tables are accepted

TEST(OperationsTable, RequiredOperationsAloneAndAllOperationsAreAccepted) {
  const uvmalloc_runtime_operations least = required();
  EXPECT_EQ(fault_of(&least), "");
  const uvmalloc_runtime_operations most = complete();
  EXPECT_EQ(fault_of(&most), "");
}

TEST(OperationsTable, EveryRequiredOperationThatIsMissingIsNamed) {
  constexpr const char* kNames[] = {
      "initialize",         "device_count",       "describe",           "memory_figures",
      "pointer_attributes", "allocate_managed",   "free_managed",       "copy",
      "create_stream",      "destroy_stream",     "synchronize_stream", "stream_wait_event",
      "create_event",       "destroy_event",      "record_event",       "query_event",
      "synchronize_event",  "synchronize_device", "error_kind",         "error_name"};
  std::size_t offset = offsetof(uvmalloc_runtime_operations, initialize);
  for (const char* name : kNames) {
    uvmalloc_runtime_operations table = complete();
    std::memset(reinterpret_cast<char*>(&table) + offset, 0, sizeof(void*));
    EXPECT_EQ(fault_of(&table),
              fmt::format("has no {}; required are all of the required group", name));
    offset += sizeof(void*);
  }
  EXPECT_EQ(offset, offsetof(uvmalloc_runtime_operations, advise)) << "all are listed above";
  uvmalloc_runtime_operations table = complete();
  table.copy = nullptr;
  table.error_name = nullptr;
  EXPECT_EQ(fault_of(&table), "has no copy, error_name; required are all of the required group");
}

TEST(OperationsTable, HalfAGroupIsRefused) {
  uvmalloc_runtime_operations table = complete();
  table.advise = nullptr;
  EXPECT_EQ(fault_of(&table),
            "has prefetch without advise; accepted: all of the group 'hints', or none");
  table = complete();
  table.prefetch = nullptr;
  EXPECT_EQ(fault_of(&table),
            "has advise without prefetch; accepted: all of the group 'hints', or none");
  table = complete();
  table.is_initialized = nullptr;
  EXPECT_EQ(fault_of(&table),
            "has is_present without is_initialized; accepted: all of the group 'presence', or "
            "none");
}

TEST(OperationsTable, AnotherVersionOrSizeIsRefused) {
  EXPECT_EQ(fault_of(nullptr), "is NULL; accepted: a uvmalloc_runtime_operations");
  uvmalloc_runtime_operations table = complete();
  table.version = 2;
  table.struct_bytes += 8;
  EXPECT_EQ(fault_of(&table), "has version 2; accepted: 1 to 1");
  table.version = 0;
  EXPECT_EQ(fault_of(&table), "has version 0; accepted: 1 to 1");
  const std::size_t bytes = sizeof table;
  for (std::size_t other : {bytes - 8, bytes + 8}) {
    table = complete();
    table.struct_bytes = other;
    EXPECT_EQ(fault_of(&table), fmt::format("has struct_bytes {}; accepted: {}, the size in "
                                            "version 1",
                                            other, bytes));
  }
  table.struct_bytes = 0;
  EXPECT_EQ(fault_of(&table), fmt::format("has struct_bytes 0; accepted: {}, its size", bytes));
}

// ---- opening

TEST_F(ExternalRuntimeTest, ItHasItsNameAndAsManyDevicesAsTheTableSays) {
  auto runtime = open(required());
  ASSERT_NE(runtime, nullptr) << reason_;
  EXPECT_EQ(runtime->name(), "recorder");
  EXPECT_EQ(runtime->device_count(), 2);
}

TEST_F(ExternalRuntimeTest, ARuntimeThatCannotStartOrHasNoDeviceSaysWhy) {
  recorder_.code = 105;
  EXPECT_EQ(open(required()), nullptr);
  EXPECT_EQ(reason_, "initialize: TEST_ERROR (105)");
  recorder_.code = 0;
  recorder_.devices = 0;
  EXPECT_EQ(open(required()), nullptr);
  EXPECT_EQ(reason_, "it has no device");
}

// ---- calls

TEST_F(ExternalRuntimeTest, EveryOperationGetsItsArguments) {
  auto runtime = open(complete());
  void* memory = nullptr;
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  bool capturing = false;
  MemoryFigures figures;
  EXPECT_TRUE(runtime->memory_figures(1, &figures).ok());
  EXPECT_EQ(figures.free_bytes, 30u);
  EXPECT_EQ(figures.total_bytes, 100u);
  EXPECT_TRUE(runtime->allocate_managed(1, 5, &memory).ok());
  EXPECT_TRUE(runtime->create_stream(0, &stream).ok());
  EXPECT_TRUE(runtime->create_event(0, &event).ok());
  EXPECT_TRUE(
      runtime->advise(0, memory, 6, Advice::kUnsetPreferredLocation, Place::device(1)).ok());
  EXPECT_TRUE(runtime->advise(0, memory, 6, Advice::kSetReadMostly, Place::host()).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 7, Place::device(1), stream).ok());
  EXPECT_TRUE(runtime->discard(0, memory, 8, stream).ok());
  EXPECT_TRUE(runtime->copy(1, memory, stream, 9, nullptr).ok());
  EXPECT_TRUE(runtime->is_capturing(0, stream, &capturing).ok());
  EXPECT_TRUE(capturing);
  EXPECT_TRUE(runtime->record_event(0, event, stream).ok());
  EXPECT_TRUE(runtime->stream_wait_event(0, stream, event).ok());
  EXPECT_TRUE(runtime->query_event(0, event).ok());
  EXPECT_TRUE(runtime->synchronize_event(0, event).ok());
  EXPECT_TRUE(runtime->synchronize_stream(0, stream).ok());
  EXPECT_TRUE(runtime->synchronize_device(1).ok());
  EXPECT_TRUE(runtime->destroy_event(0, event).ok());
  EXPECT_TRUE(runtime->destroy_stream(0, stream).ok());
  EXPECT_TRUE(runtime->free_managed(1, memory).ok());
  EXPECT_EQ(recorder_.calls,
            (Calls{"memory_figures 1", "allocate_managed 1 5", "create_stream 0", "create_event 0",
                   "advise 0 4096 6 4 1", "advise 0 4096 6 1 -1", "prefetch 0 4096 7 1 64",
                   "discard 0 4096 8 64", "copy 1 4096 64 9 0", "is_capturing 0 64",
                   "record_event 0 80 64", "stream_wait_event 0 64 80", "query_event 0 80",
                   "synchronize_event 0 80", "synchronize_stream 0 64", "synchronize_device 1",
                   "destroy_event 0 80", "destroy_stream 0 64", "free_managed 1 4096"}));
}

TEST_F(ExternalRuntimeTest, ADeviceIsDescribedByWhatTheTableFillsIn) {
  auto runtime = open(complete());
  DeviceDescription description;
  ASSERT_TRUE(runtime->describe(1, &description).ok());
  EXPECT_EQ(recorder_.calls,
            (Calls{fmt::format("describe 1 {}", sizeof(uvmalloc_runtime_device))}));
  EXPECT_EQ(description.name, std::string(256, 'x')) << "it ends with the structure's member";
  EXPECT_EQ(description.total_bytes, 100u);
  EXPECT_TRUE(description.capabilities.managed_memory);
  EXPECT_TRUE(description.capabilities.concurrent_managed_access);
  EXPECT_FALSE(description.capabilities.pageable_memory_access);
  EXPECT_FALSE(description.capabilities.integrated);
  EXPECT_TRUE(description.capabilities.discard);
  EXPECT_EQ(description.capabilities.compute_major, 7);
  EXPECT_TRUE(description.capabilities.migrates_on_fault);
  recorder_.migrates = 0;
  ASSERT_TRUE(runtime->describe(1, &description).ok());
  EXPECT_FALSE(description.capabilities.migrates_on_fault);
}

TEST_F(ExternalRuntimeTest, PointersHaveTheKindsOfTheTable) {
  auto runtime = open(required());
  for (int kind = 0; kind <= 3; ++kind) {
    PointerAttributes attributes;
    EXPECT_TRUE(runtime->pointer_attributes(address(16 * kind), &attributes).ok());
    EXPECT_EQ(attributes.kind, static_cast<PointerKind>(kind));
    EXPECT_EQ(attributes.device, 1);
  }
  PointerAttributes attributes;
  EXPECT_TRUE(runtime->pointer_attributes(address(16 * 4), &attributes).ok());
  EXPECT_EQ(attributes.kind, PointerKind::kUnknown) << "a kind that no version has";
}

TEST_F(ExternalRuntimeTest, ADeviceThatDoesNotExistIsNeverPassedOn) {
  auto runtime = open(complete());
  void* memory = nullptr;
  DeviceDescription description;
  for (int device : {-1, 2}) {
    EXPECT_EQ(runtime->allocate_managed(device, 1, &memory).error, RuntimeError::kNoDevice);
    EXPECT_EQ(runtime->describe(device, &description).error, RuntimeError::kNoDevice);
    EXPECT_EQ(runtime->synchronize_device(device).text(), "synchronize_device: no such device (0)");
    EXPECT_FALSE(runtime->has_context(device));
  }
  EXPECT_EQ(recorder_.calls, Calls{});
}

TEST_F(ExternalRuntimeTest, EachErrorHasItsKindAndKeepsItsNameAndNumber) {
  auto runtime = open(complete());
  const std::pair<int, RuntimeError> kKinds[] = {
      {UVMALLOC_RUNTIME_NOT_READY, RuntimeError::kNotReady},
      {UVMALLOC_RUNTIME_OUT_OF_MEMORY, RuntimeError::kOutOfMemory},
      {UVMALLOC_RUNTIME_NOT_SUPPORTED, RuntimeError::kNotSupported},
      {UVMALLOC_RUNTIME_INVALID_VALUE, RuntimeError::kInvalidValue},
      {UVMALLOC_RUNTIME_NO_DEVICE, RuntimeError::kNoDevice},
      {UVMALLOC_RUNTIME_NOT_USABLE, RuntimeError::kNotUsable},
      {UVMALLOC_RUNTIME_CAPTURE, RuntimeError::kCapture},
      {UVMALLOC_RUNTIME_OTHER, RuntimeError::kOther},
      {UVMALLOC_RUNTIME_OK, RuntimeError::kOther},  // kind OK for an error code
      {77, RuntimeError::kOther},
  };
  for (auto [kind, error] : kKinds) {
    recorder_.code = 100 + kind;
    const RuntimeStatus status = runtime->query_event(0, nullptr);
    EXPECT_EQ(status.error, error) << kind;
    EXPECT_EQ(status.text(), fmt::format("query_event: TEST_ERROR ({})", 100 + kind));
  }
  recorder_.code = 999;
  EXPECT_EQ(runtime->synchronize_device(0).text(), "synchronize_device: unknown error (999)");
}

// ---- optional groups

TEST_F(ExternalRuntimeTest, WithoutHintsTheySucceedAndNothingIsCalled) {
  auto runtime = open(required());
  EXPECT_TRUE(runtime->advise(0, address(1), 2, Advice::kSetAccessedBy, Place::host()).ok());
  EXPECT_TRUE(runtime->prefetch(0, address(1), 2, Place::device(0), nullptr).ok());
  EXPECT_EQ(recorder_.calls, Calls{});
}

TEST_F(ExternalRuntimeTest, WithoutDiscardItIsNoCapabilityOfADevice) {
  auto runtime = open(required());
  DeviceDescription description;
  ASSERT_TRUE(runtime->describe(0, &description).ok());
  EXPECT_FALSE(description.capabilities.discard) << "though the device claims it";
  EXPECT_EQ(runtime->discard(0, address(1), 2, nullptr).error, RuntimeError::kNotSupported);
}

TEST_F(ExternalRuntimeTest, WithoutCaptureNothingIsCaptured) {
  auto runtime = open(required());
  bool capturing = true;
  EXPECT_TRUE(runtime->is_capturing(0, nullptr, &capturing).ok());
  EXPECT_FALSE(capturing);
}

TEST_F(ExternalRuntimeTest, WithoutContextsEveryDeviceHasOne) {
  EXPECT_TRUE(open(required())->has_context(0));
  EXPECT_FALSE(open(complete())->has_context(0));
  EXPECT_TRUE(open(complete())->has_context(1));
}

// ---- registration

TEST_F(ExternalRuntimeTest, ARegisteredTableIsARuntimeByItsName) {
  static Recorder machine;
  machine.devices = 3;
  {
    std::string name = "registered";
    uvmalloc_runtime_operations table = complete();
    EXPECT_EQ(add_external_runtime(name.c_str(), &table, &machine), "");
    EXPECT_EQ(add_external_runtime(name.c_str(), &table, &machine),
              fmt::format("the runtime's name 'registered' is taken; accepted: any other than {}",
                          fmt::join(runtime_names(), ", ")));
  }
  RuntimeChoice choice = open_runtime("registered");
  ASSERT_NE(choice.runtime, nullptr) << choice.reason;
  EXPECT_EQ(choice.runtime->device_count(), 3) << "name and table were copied";
  EXPECT_TRUE(is_runtime_present("registered"));
  EXPECT_FALSE(is_runtime_initialized("registered"));
  machine.initialized = 1;
  EXPECT_TRUE(is_runtime_initialized("registered"));
}

TEST_F(ExternalRuntimeTest, NamesThatCouldMeanSomethingElseAreRefused) {
  const uvmalloc_runtime_operations table = required();
  for (const char* name : {"", "auto", "./mine"}) {
    EXPECT_EQ(add_external_runtime(name, &table, nullptr),
              fmt::format("the runtime's name is '{}'; accepted: a name that is not empty, not "
                          "'auto', and has no slash",
                          name));
  }
  EXPECT_NE(add_external_runtime(nullptr, &table, nullptr), "");
  EXPECT_EQ(add_external_runtime("faulty", nullptr, nullptr),
            "the operations table of the runtime 'faulty' is NULL; accepted: a "
            "uvmalloc_runtime_operations");
}

}  // namespace
}  // namespace uvm::external
