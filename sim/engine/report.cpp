#include <uvmalloc/sim/engine/report.hpp>

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <uvmalloc/sim/engine/call_table.hpp>
#include <uvmalloc/sim/engine/machine.hpp>

namespace uvmsim {
namespace {

struct Report {
  std::string path;
  pid_t process = 0;
};

Report& report() {
  static Report* const instance = new Report;
  return *instance;
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
    {"unimplemented_calls", &uvmsim_counters::unimplemented_calls},
});

void print(std::FILE* file) {
  Machine& machine = Machine::instance();
  const uvmsim_counters counters = machine.counters();
  std::fprintf(file, "{\n  \"devices\": %d,\n  \"virtual_ns\": %llu,\n  \"counters\": {\n",
               machine.device_count(), static_cast<unsigned long long>(machine.now_ns()));
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

void write_report() {
  if (getpid() != report().process) return;
  std::FILE* file = std::fopen(report().path.c_str(), "we");
  if (file == nullptr) {
    std::fprintf(stderr, "uvmsim: UVMSIM_REPORT is '%s', which cannot be written: %s\n",
                 report().path.c_str(), std::strerror(errno));
    return;
  }
  print(file);
  std::fclose(file);
}

}  // namespace

void write_report_at_exit() {
  const char* path = std::getenv("UVMSIM_REPORT");
  if (path == nullptr || *path == '\0') return;
  report() = {path, getpid()};
  std::atexit(&write_report);
}

}  // namespace uvmsim
