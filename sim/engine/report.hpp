// The report that UVMSIM_REPORT asks for: counters and unimplemented calls as JSON, written when
// the process that made the machine exits, and by no other. Until then the counters are also in a
// file beside it (UVMSIM_REPORT.counters), which stays if the process ends in another way: 4096
// bytes of JSON, padded with blanks, that name the process and give each counter's index, then
// the counters, 64 bits each.
#pragma once

#include <uvmalloc/sim/uvmsim.h>

namespace uvmsim {

// Where the machine of this process counts. Called once, by the machine.
uvmsim_counters& counters_of_process();

// Called once, by the machine.
void write_report_at_exit();

}  // namespace uvmsim
