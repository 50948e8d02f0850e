// Names and texts of HIP's error values. Null for a number that is none.
#pragma once

namespace uvmsim::hip {

const char* runtime_error_name(int error);
const char* runtime_error_text(int error);

}  // namespace uvmsim::hip
