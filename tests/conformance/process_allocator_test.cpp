// The allocator of a process, its report and the doctor's findings. Each test needs its own
// process, which ctest provides.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <uvmalloc/uvmalloc.h>
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"

#include "tests/conformance/cuda_expectations.hpp"
#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

using Json = nlohmann::json;

class ProcessAllocator : public ::testing::Test {
 protected:
  void SetUp() override {
    if (process_allocator() != nullptr) GTEST_SKIP() << "not in a process of its own";
    setenv("PYTORCH_ENABLE_UNIFIED_MEMORY", "1", 1);
    setenv("UVMALLOC_BUDGET", "256MiB", 1);
  }
};

TEST_F(ProcessAllocator, ThereIsNoneBeforeItIsNeeded) {
  EXPECT_EQ(process_allocator(), nullptr);
  Json report = Json::parse(report_json());
  EXPECT_EQ(report["active"], false);
  EXPECT_EQ(report["version"], version());
  EXPECT_EQ(report_text(), "uvmalloc: not active\n");
  EXPECT_EQ(process_allocator(), nullptr) << "reports make none";
}

TEST_F(ProcessAllocator, NothingIsInitialisedBeforeItIsMade) {
  EXPECT_TRUE(is_runtime_present("cuda"));
  EXPECT_FALSE(is_driver_initialized()) << "a look for the driver does not initialise it";
  set_plugin_installed(true);
  EXPECT_EQ(uvmalloc_is_enabled(), 1);
  EXPECT_FALSE(is_driver_initialized());
  EXPECT_EQ(process_allocator(), nullptr);
  auto runtime = testing::open("cuda");
  EXPECT_TRUE(is_driver_initialized()) << "as if the program had done it";
  EXPECT_TRUE(is_runtime_initialized("auto"));
  EXPECT_EQ(process_allocator(), nullptr);
}

TEST_F(ProcessAllocator, ADeviceHasAContextOnceItsMemoryIsRequested) {
  CachingManagedAllocator* allocator = activate_process_allocator().allocator;
  ASSERT_NE(allocator, nullptr);
  EXPECT_NE(allocator->inspection().runtime().has_context(0), testing::kContextsAreMade)
      << "making the allocator makes none";
  EXPECT_FALSE(allocator->inspection().runtime().has_context(
      allocator->inspection().runtime().device_count()));
  allocator->free(allocator->allocate(Facade::kHost, 0, 4 * kMiB));
  EXPECT_TRUE(allocator->inspection().runtime().has_context(0));
  EXPECT_TRUE(testing::open("cuda")->has_context(0)) << "it is the driver that knows";
}

TEST_F(ProcessAllocator, CpuTensorsAreManagedAtOnceIfTheSettingSaysSo) {
  EXPECT_FALSE(manages_cpu_tensors_at_once());
  set_manages_cpu_tensors_at_once();
  EXPECT_TRUE(manages_cpu_tensors_at_once());
}

TEST_F(ProcessAllocator, TheVariableAsksForManagedCpuTensorsAtOnce) {
  setenv("UVMALLOC_CPU", "managed", 1);
  EXPECT_TRUE(manages_cpu_tensors_at_once());
}

TEST_F(ProcessAllocator, ThereIsOneForTheLifeOfTheProcess) {
  const Activation& activation = activate_process_allocator();
  ASSERT_NE(activation.allocator, nullptr) << activation.reason;
  EXPECT_EQ(process_allocator(), activation.allocator);
  EXPECT_EQ(activate_process_allocator().allocator, activation.allocator);
  EXPECT_EQ(activation.allocator->limits().budget_bytes(), 256 * kMiB);
}

TEST_F(ProcessAllocator, WithoutARuntimeTheReasonIsSaid) {
  setenv("UVMALLOC_RUNTIME", "abacus", 1);
  ::testing::internal::CaptureStderr();
  const Activation& activation = activate_process_allocator();
  std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(activation.allocator, nullptr);
  EXPECT_EQ(activation.reason,
            fmt::format(
                "no runtime is named 'abacus' (UVMALLOC_RUNTIME or an option); accepted: auto, {}",
                fmt::join(runtime_names(), ", ")));
  EXPECT_EQ(said, "uvmalloc: not active, the program runs as without uvmalloc: " +
                      activation.reason + "\n");
}

TEST_F(ProcessAllocator, TheReportListsTheRequests) {
  CachingManagedAllocator* allocator = activate_process_allocator().allocator;
  ASSERT_NE(allocator, nullptr);
  void* moved = allocator->allocate(Facade::kHost, 0, 4 * kMiB);
  allocator->free(allocator->allocate(Facade::kDevice, 0, 8 * kMiB));
  allocator->free(allocator->allocate(Facade::kDevice, 0, 8 * kMiB));
  ASSERT_NE(allocator->move(moved, {Place::host(), Place::device(0), 0, nullptr, true}), nullptr);
  EXPECT_TRUE(Json::parse(report_json())["native_allocations"].is_null()) << "nobody counts them";
  set_native_allocations([] { return NativeAllocations{.pinned = 2}; });
  for (int i = 0; i < 7; ++i) count_unmanaged_host(100);

  Json report = Json::parse(report_json());
  EXPECT_EQ(report["active"], true);
  EXPECT_EQ(report["budget_bytes"], 256 * kMiB);
  EXPECT_EQ(report["facades"]["host"]["allocations"], 1);
  EXPECT_EQ(report["facades"]["host"]["live_bytes"], 0) << "the block has moved";
  EXPECT_EQ(report["facades"]["device"]["live_bytes"], 4 * kMiB);
  EXPECT_EQ(report["facades"]["device"]["allocations"], 3);
  EXPECT_EQ(report["facades"]["device"]["cache_hits"], 2);
  EXPECT_EQ(report["moves"]["host_to_device"], 1);
  EXPECT_EQ(report["copies_by_moves"]["count"], 0);
  EXPECT_EQ(report["host_unmanaged"]["allocations"], 7);
  EXPECT_EQ(report["host_unmanaged"]["allocated_bytes"], 700);
  EXPECT_EQ(report["framework"], false);
  EXPECT_EQ(report["pid"], getpid());
  EXPECT_EQ(report["devices"][0]["total_bytes"], allocator->inspection().devices()[0].total_bytes);
  EXPECT_EQ(report["native_allocations"]["pinned"], 2);
  EXPECT_GE(report["driver_calls"]["allocate_managed"], 2);

  std::string text = report_text();
  EXPECT_NE(text.find("1 without a copy"), std::string::npos) << text;
  EXPECT_NE(text.find("256 MiB"), std::string::npos) << text;
  allocator->free(moved);
}

TEST_F(ProcessAllocator, HostMemoryIsManagedUntilAThreadSaysOtherwise) {
  EXPECT_EQ(host_memory(), HostMemory::kManaged);
  EXPECT_EQ(uvmalloc_set_host_managed(0), 1);
  EXPECT_EQ(host_memory(), HostMemory::kMalloc);
  EXPECT_EQ(uvmalloc_set_host_managed(2), 0);
  EXPECT_EQ(host_memory(), HostMemory::kAlwaysManaged);
  EXPECT_EQ(uvmalloc_set_host_managed(1), 2);
  EXPECT_EQ(host_memory(), HostMemory::kManaged);
}

TEST_F(ProcessAllocator, UnifiedMemoryIsEnabledWhenAFrameworkHasItAndADeviceIsThere) {
  EXPECT_EQ(uvmalloc_is_enabled(), 0);
  set_plugin_installed(true);
  EXPECT_EQ(uvmalloc_is_enabled(), 1);
  set_plugin_installed(false);
  EXPECT_EQ(uvmalloc_is_enabled(), 0);
}

TEST_F(ProcessAllocator, MoveOnCopyIsAFlagOfTheProcessAndOfAThread) {
  EXPECT_EQ(uvmalloc_move_on_copy(), 0);
  EXPECT_EQ(uvmalloc_set_move_on_copy(1), 0);
  EXPECT_EQ(move_mode(), MoveMode::kAlias);
  EXPECT_EQ(uvmalloc_set_move_on_copy(0), 1);
  EXPECT_EQ(move_mode(), MoveMode::kCopyOnWrite);
  EXPECT_EQ(uvmalloc_set_thread_move_on_copy(1), 0);
  EXPECT_EQ(move_mode(), MoveMode::kAlias);
  std::thread([] { EXPECT_EQ(move_mode(), MoveMode::kCopyOnWrite); }).join();
  EXPECT_EQ(uvmalloc_set_thread_move_on_copy(0), 1);
  EXPECT_EQ(move_mode(), MoveMode::kCopyOnWrite);
}

TEST_F(ProcessAllocator, ReportsAreWrittenWhenTheProcessEnds) {
  auto folder = std::filesystem::temp_directory_path() / ("uvm-report-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  setenv("UVMALLOC_REPORT_DIR", folder.c_str(), 1);
  setenv("UVMALLOC_REPORT", "stderr", 1);
  auto body = [] {
    activate_process_allocator();
    std::exit(0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "uvmalloc: report");
  auto files = std::filesystem::directory_iterator(folder);
  ASSERT_NE(files, std::filesystem::directory_iterator()) << "no report in " << folder;
  std::ifstream file(files->path());
  EXPECT_EQ(Json::parse(file)["active"], true);
  std::filesystem::remove_all(folder);
}

// A folder for reports, removed with the object.
class ReportFolder {
 public:
  ReportFolder() {
    std::filesystem::create_directory(path_);
    setenv("UVMALLOC_REPORT_DIR", path_.c_str(), 1);
  }
  ~ReportFolder() { std::filesystem::remove_all(path_); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Json figures(const std::string& name) const {
    std::string why_not;
    Json found = Json::parse(report_json_of(path_ / name, &why_not), nullptr, false);
    EXPECT_EQ(why_not, "");
    return found;
  }

 private:
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("uvm-left-" + std::to_string(getpid()));
};

// Runs a child that uses the allocator and skips its exit handlers. Returns its process ID.
pid_t run_and_leave() {
  const pid_t pid = fork();
  if (pid == 0) {
    count_unmanaged_host(100);  // before there is an allocator
    CachingManagedAllocator* allocator = activate_process_allocator().allocator;
    count_unmanaged_host(50);
    allocator->free(allocator->allocate(Facade::kDevice, 0, 8 * kMiB));
    set_plugin_installed(true);
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  return pid;
}

TEST_F(ProcessAllocator, AProcessThatRunsNoExitHandlersLeavesItsFigures) {
  const ReportFolder folder;
  setenv("RANK", "3", 1);
  const pid_t pid = run_and_leave();
  const std::string name = "report." + std::to_string(pid) + ".figures";
  ASSERT_EQ(folder.names(), std::vector{name});
  const Json report = folder.figures(name);
  EXPECT_EQ(report["pid"], pid);
  EXPECT_EQ(report["parent"], getpid());
  EXPECT_EQ(report["rank"], "3");
  EXPECT_EQ(report["active"], true);
  EXPECT_EQ(report["framework"], true) << "it came after the allocator";
  EXPECT_EQ(report["budget_bytes"], 256 * kMiB);
  EXPECT_EQ(report["facades"]["device"]["allocations"], 1);
  EXPECT_EQ(report["host_unmanaged"]["allocations"], 2);
  EXPECT_EQ(report["host_unmanaged"]["allocated_bytes"], 150);
  EXPECT_TRUE(report["native_allocations"].is_null());
}

TEST_F(ProcessAllocator, AProcessThatEndsByItselfLeavesAReportAndNoFigures) {
  const ReportFolder folder;
  const pid_t pid = fork();
  if (pid == 0) {
    activate_process_allocator();
    std::exit(0);
  }
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(folder.names(), std::vector{"report." + std::to_string(pid) + ".json"});
}

TEST_F(ProcessAllocator, TheFiguresOfAnEarlierProgramOfTheProcessStay) {
  const ReportFolder folder;
  const pid_t pid = fork();
  if (pid == 0) {
    // Like a process after exec, which keeps the process ID.
    const std::string name = "report." + std::to_string(getpid()) + ".figures";
    std::ofstream(std::string(getenv("UVMALLOC_REPORT_DIR")) + "/" + name) << "earlier";
    activate_process_allocator();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  const std::string report = "report." + std::to_string(pid);
  EXPECT_EQ(folder.names(), (std::vector{report + "-2.figures", report + ".figures"}));
}

TEST_F(ProcessAllocator, AReportThatCannotBeWrittenIsSaid) {
  setenv("UVMALLOC_REPORT_DIR", "/nowhere", 1);
  auto body = [] {
    activate_process_allocator();
    std::exit(0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "could not be written to /nowhere");
}

TEST_F(ProcessAllocator, TheDoctorMakesNoAllocatorAndFindsTheDevices) {
  Json found = Json::parse(doctor_json());
  EXPECT_EQ(process_allocator(), nullptr);
  EXPECT_EQ(found["runtime"]["name"], "cuda");
  EXPECT_EQ(found["usable"], true);
  EXPECT_EQ(found["verdict"], "usable and switched on");
  ASSERT_GE(found["devices"].size(), 1u);
  EXPECT_EQ(found["devices"][0]["capabilities"]["migrates_on_fault"], true);
  EXPECT_EQ(found["host_memory"], "managed");
  EXPECT_TRUE(found["configuration_errors"].empty());
}

TEST_F(ProcessAllocator, TheDoctorSaysWhatAutomaticSettingsComeTo) {
  if (testing::on_real_device()) GTEST_SKIP() << "the sizes are the simulated device's";
  setenv("UVMSIM_CAPACITY", "128MiB", 1);
  const Json found = Json::parse(doctor_json());
  std::map<std::string, std::string> effective;
  for (const Json& setting : found["configuration"]) {
    if (setting.contains("effective")) effective[setting["name"]] = setting["effective"];
    EXPECT_EQ(setting.contains("effective"), setting["value"] == "auto") << setting;
  }
  EXPECT_EQ(effective["UVMALLOC_RUNTIME"], "cuda");
  EXPECT_EQ(effective["UVMALLOC_HOST_MEMORY"], "managed");
  EXPECT_EQ(effective["UVMALLOC_THREAD_CACHE"], "64 MiB");
  EXPECT_TRUE(effective["UVMALLOC_RESERVE"].starts_with("2 MiB of device 0"));
  EXPECT_FALSE(effective.contains("UVMALLOC_BUDGET")) << "it is set";
}

TEST_F(ProcessAllocator, DoctorAndReportSayWhatHostMemoryIs) {
  if (testing::on_real_device()) GTEST_SKIP() << "a real machine is of one kind";
  setenv("UVMSIM_PROFILE", "coherent", 1);
  EXPECT_EQ(Json::parse(doctor_json())["host_memory"], testing::kHostMemoryOfCoherentMachine);
  ASSERT_NE(activate_process_allocator().allocator, nullptr);
  EXPECT_EQ(Json::parse(report_json())["host_memory"], testing::kHostMemoryOfCoherentMachine);
}

TEST_F(ProcessAllocator, TheDoctorSaysHowToSwitchItOn) {
  setenv("PYTORCH_ENABLE_UNIFIED_MEMORY", "0", 1);
  Json found = Json::parse(doctor_json());
  EXPECT_EQ(found["usable"], true);
  EXPECT_NE(found["verdict"].get<std::string>().find("PYTORCH_ENABLE_UNIFIED_MEMORY=1"),
            std::string::npos);
}

TEST_F(ProcessAllocator, TheDoctorSaysWhyItStaysInactive) {
  setenv("UVMALLOC_RUNTIME", "abacus", 1);
  Json found = Json::parse(doctor_json());
  EXPECT_EQ(found["usable"], false);
  EXPECT_EQ(found["runtime"]["available"], false);
  EXPECT_NE(found["verdict"].get<std::string>().find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace uvm
