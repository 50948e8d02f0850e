#include "sim/engine/report.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "sim/engine/call_table.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim {
namespace {

struct Report {
  std::string path;  // empty: no report is requested
  std::string counters_path;
  pid_t process = 0;
};

// Returns UVMSIM_REPORT, with %p replaced by the process ID.
std::string path_of(pid_t process) {
  const char* wanted = secure_getenv("UVMSIM_REPORT");
  std::string path = wanted != nullptr ? wanted : "";
  const std::size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(process));
  return path;
}

Report& report() {
  static Report* const instance =
      new Report{path_of(getpid()), path_of(getpid()) + ".counters", getpid()};
  return *instance;
}

// Returns the start of the command line, escaped for JSON, without bytes that are not ASCII.
std::string program_name() {
  constexpr std::size_t kMostBytes = 1024;
  std::ifstream file("/proc/self/cmdline");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  text.resize(std::min(text.size(), kMostBytes));
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\0' || c == '\n') out += ' ';
    if (c >= ' ' && c <= '~') out += c;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

struct CounterField {
  const char* name;
  std::uint64_t uvmsim_counters::*value;
};

constexpr auto kFields = std::to_array<CounterField>({
    {"kernels", &uvmsim_counters::kernels},
    {"managed_allocations", &uvmsim_counters::managed_allocations},
    {"managed_frees", &uvmsim_counters::managed_frees},
    {"device_allocations", &uvmsim_counters::device_allocations},
    {"device_frees", &uvmsim_counters::device_frees},
    {"pinned_allocations", &uvmsim_counters::pinned_allocations},
    {"pinned_frees", &uvmsim_counters::pinned_frees},
    {"advice_calls", &uvmsim_counters::advice_calls},
    {"prefetch_calls", &uvmsim_counters::prefetch_calls},
    {"discard_calls", &uvmsim_counters::discard_calls},
    {"copy_calls", &uvmsim_counters::copy_calls},
    {"copy_bytes", &uvmsim_counters::copy_bytes},
    {"fault_pages_device", &uvmsim_counters::fault_pages_device},
    {"fault_pages_host", &uvmsim_counters::fault_pages_host},
    {"migrated_bytes_to_device", &uvmsim_counters::migrated_bytes_to_device},
    {"migrated_bytes_to_host", &uvmsim_counters::migrated_bytes_to_host},
    {"migrated_bytes_between_devices", &uvmsim_counters::migrated_bytes_between_devices},
    {"populated_bytes_device", &uvmsim_counters::populated_bytes_device},
    {"populated_bytes_host", &uvmsim_counters::populated_bytes_host},
    {"evicted_chunks", &uvmsim_counters::evicted_chunks},
    {"evicted_bytes", &uvmsim_counters::evicted_bytes},
    {"remote_access_bytes", &uvmsim_counters::remote_access_bytes},
    {"graph_launches", &uvmsim_counters::graph_launches},
    {"faults_device", &uvmsim_counters::faults_device},
    {"speculative_pages_device", &uvmsim_counters::speculative_pages_device},
    {"throttles_device", &uvmsim_counters::throttles_device},
    {"pinned_pages_device", &uvmsim_counters::pinned_pages_device},
    {"unimplemented_calls", &uvmsim_counters::unimplemented_calls},
});

void print(std::FILE* file) {
  Machine& machine = Machine::instance();
  const uvmsim_counters counters = machine.counters();
  std::fprintf(file, "{\n  \"pid\": %d,\n  \"program\": \"%s\",\n", getpid(),
               program_name().c_str());
  std::fprintf(file, "  \"devices\": %d,\n  \"virtual_ns\": %llu,\n  \"counters\": {\n",
               machine.device_count(), static_cast<unsigned long long>(machine.streams().now_ns()));
  for (const CounterField& field : kFields) {
    std::fprintf(file, "    \"%s\": %llu%s\n", field.name,
                 static_cast<unsigned long long>(counters.*field.value),
                 &field == &kFields.back() ? "" : ",");
  }
  std::fprintf(file, "  },\n  \"unimplemented\": {");
  const char* separator = "\n";
  CallTable::instance().visit([&](const CallRecord& record) {
    if (!record.is_unimplemented() || record.calls() == 0) return;
    std::fprintf(file, "%s    \"%s\": %llu", separator, record.name().c_str(),
                 static_cast<unsigned long long>(record.calls()));
    separator = ",\n";
  });
  std::fprintf(file, "%s}\n}\n", *separator == ',' ? "\n  " : "");
}

constexpr std::size_t kHeaderBytes = 4096;

std::string header() {
  std::string text = "{\"pid\": " + std::to_string(getpid()) + ", \"program\": \"" +
                     program_name() + "\", \"counters\": {";
  uvmsim_counters counters{};
  for (const CounterField& field : kFields) {
    if (&field != &kFields.front()) text += ", ";
    const auto offset = reinterpret_cast<const char*>(&(counters.*field.value)) -
                        reinterpret_cast<const char*>(&counters);
    const std::size_t index = static_cast<std::size_t>(offset) / sizeof(std::uint64_t);
    text += std::string("\"") + field.name + "\": " + std::to_string(index);
  }
  text += "}}";
  text.resize(kHeaderBytes, ' ');
  return text;
}

// Reserves the whole file now, because a write to a mapped page without room in the file system, or
// beyond the limit on file sizes, would kill the process.
bool has_room(int descriptor, std::size_t size_bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < size_bytes) return false;
  return posix_fallocate(descriptor, 0, static_cast<off_t>(size_bytes)) == 0;
}

// Returns nullptr if the file cannot be created or mapped.
void* map_counters(const std::string& path) {
  static_assert(sizeof(uvmsim_counters) % sizeof(std::uint64_t) == 0);
  constexpr std::size_t kBytes = kHeaderBytes + sizeof(uvmsim_counters);
  // A process with the same file name (the child of a process without a machine) gets a new file.
  // Truncating the other process's file would kill that process at its next count.
  unlink(path.c_str());
  const int descriptor = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (has_room(descriptor, kBytes)) {
    mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  if (mapped == MAP_FAILED) {
    unlink(path.c_str());
    return nullptr;
  }
  const std::string text = header();
  std::memcpy(mapped, text.data(), text.size());
  return static_cast<char*>(mapped) + kHeaderBytes;
}

void write_report() {
  if (getpid() != report().process) return;
  const int descriptor =
      open(report().path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  std::FILE* file = descriptor >= 0 ? fdopen(descriptor, "w") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "uvmsim: UVMSIM_REPORT is '%s', which cannot be written: %s\n",
                 report().path.c_str(), std::strerror(errno));
    return;
  }
  print(file);
  if (std::fclose(file) == 0) unlink(report().counters_path.c_str());
}

}  // namespace

uvmsim_counters& counters_of_process() {
  void* memory = report().path.empty() ? nullptr : map_counters(report().counters_path);
  return memory != nullptr ? *new (memory) uvmsim_counters{} : *new uvmsim_counters{};
}

void write_report_at_exit() {
  if (!report().path.empty()) std::atexit(&write_report);
}

}  // namespace uvmsim
