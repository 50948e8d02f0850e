#include "allocator/trace/trace_clock.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <fstream>
#include <string>

namespace uvm {
namespace {

#if defined(__x86_64__)
bool counter_is_trusted() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kInvariant = 1u << 8;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & kInvariant) == 0) return false;
  // If the counters of the processors differed, the kernel would use another clock source.
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  file >> source;
  return source == "tsc" || source == "kvm-clock" || source == "hyperv_clocksource_tsc_page";
}
#else
bool counter_is_trusted() {
  return false;
}
#endif

}  // namespace

TraceClock::TraceClock()
    : kind_(counter_is_trusted() ? TraceClockKind::kTicks : TraceClockKind::kNanoseconds) {}

}  // namespace uvm
