#include "allocator/process/process_allocator.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/registry.hpp>
#include <uvmalloc/tracing.hpp>
#include "allocator/base/own_file.hpp"
#include "allocator/engine/engine.hpp"
#include "runtime/log.hpp"
#include "runtime/made_once.hpp"
#include "runtime/work_range.hpp"

namespace uvm {

// Defined in report.cpp. Returns facts that do not change while an allocator lives.
std::string about_json(const CachingManagedAllocator& allocator);

namespace {

std::atomic<CachingManagedAllocator*> active_allocator{nullptr};
std::atomic<bool> activation_failed{false};
std::atomic<const std::string*> why_inactive{nullptr};  // the string is never destroyed

// Holds the counts until the allocator exists.
UnmanagedHost early_unmanaged_host;
std::atomic<UnmanagedHost*> unmanaged_host{&early_unmanaged_host};

// Redirects the counts to `of`, and adds the earlier counts.
void count_unmanaged_host_in(UnmanagedHost* of) noexcept {
  UnmanagedHost* before = unmanaged_host.exchange(of);
  of->count(before->allocations.exchange(0), before->bytes.exchange(0));
}

// Stores the report's facts about the process in the file of figures.
void describe(CachingManagedAllocator* allocator) {
  const std::string about = about_json(*allocator);
  if (!allocator->engine().machine.figure_store.describe(about)) {
    log(LogLevel::kWarning,
        "if this process is killed, its report will lack the program's name: the description is "
        "too "
        "long ({} bytes)",
        about.size());
  }
}

// Returns a name for the file of figures, with the ID of this process. If that file exists, because
// the process ran another program before (exec), adds another number.
std::string figures_file(const std::string& wanted_directory) {
  constexpr int kMostPrograms = 100;
  // Absolute, because the program may change its working directory before it ends.
  std::error_code error;
  const std::string directory = std::filesystem::absolute(wanted_directory, error);
  std::string file = fmt::format("{}/report.{}.figures", directory, getpid());
  const auto is_taken = [&] {
    return std::filesystem::exists(std::filesystem::symlink_status(file, error));
  };
  for (int number = 2; number < kMostPrograms && is_taken(); ++number) {
    file = fmt::format("{}/report.{}-{}.figures", directory, getpid(), number);
  }
  return file;
}

// Writes the report, then removes the file of figures. So if a file of figures remains, no report
// was written.
void write_report_file(CachingManagedAllocator& allocator, const std::string& directory) {
  const std::string path = fmt::format("{}/report.{}.json", directory, getpid());
  if (OwnFile(path).replace(report_json() + '\n')) {
    allocator.engine().machine.figure_store.remove_file();
  } else {
    log(LogLevel::kWarning, "the report could not be written to {}: {}", path,
        own_file_error(errno));
  }
}

// Without this report of the reason, a launcher would say that the program never used uvmalloc.
void report_inactive_at_exit() {
  if (process_allocator() != nullptr) return;
  const std::string& directory = process_configuration().configuration.report_directory;
  if (directory.empty()) return;
  OwnFile(fmt::format("{}/report.{}.json", directory, getpid())).replace(report_json() + '\n');
}

void report_at_exit() {
  CachingManagedAllocator* allocator = process_allocator();
  if (allocator == nullptr || allocator->inspection().in_forked_child()) return;
  allocator->tracing().stop();
  const Configuration& configuration = allocator->inspection().configuration();
  try {
    if (!configuration.report_directory.empty()) {
      write_report_file(*allocator, configuration.report_directory);
    }
    if (configuration.report == "stderr") {
      std::string text = report_text();
      [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    }
  } catch (const std::exception& error) {
    // The program has ended successfully; its report must not make it fail.
    log(LogLevel::kWarning, "there is no report: {}", error.what());
  }
}

// If this throws, nothing has changed, so the next call can try again.
std::unique_ptr<Activation> activate() {
  const Configuration& configuration = process_configuration().configuration;
  auto activation = std::make_unique<Activation>();
  RuntimeChoice choice = open_runtime(configuration.runtime);
  activation->reason = choice.reason;
  if (choice.runtime != nullptr) {
    try {
      const std::string& directory = configuration.report_directory;
      auto allocator = std::make_unique<CachingManagedAllocator>(
          std::move(choice.runtime), configuration,
          directory.empty() ? std::string() : figures_file(directory));
      log(LogLevel::kInfo, "active: {} device(s), budget {}",
          allocator->inspection().runtime().device_count(),
          format_size(allocator->limits().budget_bytes()));
      if (configuration.nvtx && !WorkRange::switch_on())
        log(LogLevel::kWarning, "UVMALLOC_NVTX has no effect: this build has no headers of NVTX 3");
      activation->reason.clear();
      describe(allocator.get());
      count_unmanaged_host_in(&allocator->engine().machine.figure_store.unmanaged_host());
      activation->allocator = allocator.release();
      active_allocator.store(activation->allocator, std::memory_order_release);
      std::atexit(report_at_exit);
      return activation;
    } catch (const std::runtime_error& error) {
      activation->reason = error.what();
    }
  }
  activation_failed = true;
  log(LogLevel::kWarning, "not active, the program runs as without uvmalloc: {}",
      activation->reason);
  note_inactive(activation->reason);
  return activation;
}

}  // namespace

const ParsedConfiguration& process_configuration() {
  static constinit MadeOnce<ParsedConfiguration> configuration;
  return configuration.get([] {
    auto parsed = std::make_unique<ParsedConfiguration>(parse_environment());
    set_log_level(parsed->configuration.log);
    for (const std::string& error : parsed->errors) log_line(LogLevel::kError, error);
    return parsed;
  });
}

void note_inactive(const std::string& reason) {
  static const pid_t kProcess = getpid();
  const std::string* none = nullptr;
  auto noted = std::make_unique<const std::string>(reason);
  if (!why_inactive.compare_exchange_strong(none, noted.get())) return;
  [[maybe_unused]] const std::string* kept = noted.release();
  std::atexit([] {
    if (getpid() != kProcess) return;
    try {
      report_inactive_at_exit();
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "there is no report: {}", error.what());
    }
  });
}
const std::string* inactive_reason() noexcept {
  return why_inactive.load();
}

const Activation& activate_process_allocator() {
  static constinit MadeOnce<Activation> activation;
  return activation.get(activate, [] {
    auto lost = std::make_unique<Activation>();
    lost->reason = "this process was forked while its parent initialised the device";
    activation_failed = true;
    return lost;
  });
}

CachingManagedAllocator* process_allocator() noexcept {
  return active_allocator.load(std::memory_order_acquire);
}

bool is_driver_initialized() {
  return process_allocator() != nullptr ||
         is_runtime_initialized(process_configuration().configuration.runtime);
}

void count_unmanaged_host(std::size_t size_bytes) noexcept {
  unmanaged_host.load(std::memory_order_relaxed)->count(1, size_bytes);
}

bool has_activation_failed() noexcept {
  return activation_failed;
}

void describe_process() noexcept {
  try {
    if (CachingManagedAllocator* allocator = process_allocator()) describe(allocator);
  } catch (const std::bad_alloc&) {
    // The report keeps the earlier value.
  }
}

const char* version() {
  return UVMALLOC_VERSION;
}

}  // namespace uvm
