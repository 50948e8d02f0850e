#include "allocator/process/process_facts.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "allocator/process/process_allocator.hpp"

namespace uvm {
namespace {

const auto kProcessStart = std::chrono::steady_clock::now();

const auto kProcessStartTime = std::chrono::system_clock::now();

std::string text_of_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string program_name() {
  constexpr std::size_t kMostBytes = 2048;
  std::string text = text_of_file("/proc/self/cmdline");
  text.resize(std::min(text.size(), kMostBytes));
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// Returns the start time of the process in ticks of the kernel, or 0 if it is unknown. Together
// with the process ID this time identifies the process.
std::uint64_t process_start_ticks() {
  constexpr int kField = 22;          // starttime in proc(5)
  constexpr int kFieldAfterName = 3;  // the name before it may contain spaces
  const std::string text = text_of_file("/proc/self/stat");
  std::size_t at = text.rfind(')');
  for (int field = kFieldAfterName; at != std::string::npos && field <= kField; ++field) {
    at = text.find(' ', at + 1);
  }
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// Returns the rank that the launcher has set for the process, or nullptr if it has set none.
const char* rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* text = secure_getenv(name); text != nullptr && *text != '\0') return text;
  }
  return nullptr;
}

}  // namespace

void add_process(JsonText* out) {
  const std::chrono::duration<double> since_epoch = kProcessStartTime.time_since_epoch();
  out->add("version", version());
  out->add("program", program_name());
  out->add("pid", getpid());
  out->add("parent", getppid());
  if (const char* text = rank()) {
    out->add("rank", text);
  } else {
    out->add("rank", nullptr);
  }
  out->add("start_time", since_epoch.count());
  out->add("start_ticks", process_start_ticks());
}

std::chrono::duration<double> process_age() {
  return std::chrono::steady_clock::now() - kProcessStart;
}

}  // namespace uvm
