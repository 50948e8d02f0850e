// Writes the report to UVMSIM_REPORT: counters and unimplemented calls as JSON, when the process
// that created the machine exits. Until then the counters are also in the file
// UVMSIM_REPORT.counters, which stays if the process ends in another way. That file starts with
// 4096 bytes of JSON, padded with blanks: the process, and the index of each counter. The counters
// follow, 64 bits each.
#pragma once

#include <uvmalloc/sim/uvmsim.h>

namespace uvmsim {

// Returns the counters of this process's machine. Called once, by the machine.
uvmsim_counters& counters_of_process();

// Called once, by the machine.
void write_report_at_exit();

}  // namespace uvmsim
