// The report that UVMSIM_REPORT asks for: counters and unimplemented calls as JSON, written when
// the process that made the machine exits, and by no other.
#pragma once

namespace uvmsim {

// Called once, by the machine.
void write_report_at_exit();

}  // namespace uvmsim
