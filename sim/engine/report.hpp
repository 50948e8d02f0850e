// Writes the report to UVMSIM_REPORT: counters and unimplemented calls as JSON, when the process
// that created the machine exits. Until then the counters are also in a file beside it
// (UVMSIM_REPORT.counters), which stays if the process ends in another way. That file has 4096
// bytes of JSON, padded with blanks, with the process and each counter's index, then the counters,
// 64 bits each.
#pragma once

#include <uvmalloc/sim/uvmsim.h>

namespace uvmsim {

// The counters of this process's machine. Called once, by the machine.
uvmsim_counters& counters_of_process();

// Called once, by the machine.
void write_report_at_exit();

}  // namespace uvmsim
