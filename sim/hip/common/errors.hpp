// Names and texts of HIP's error values. Null for an unknown number.
#pragma once

namespace uvmsim::hip {

const char* runtime_error_name(int error);
const char* runtime_error_text(int error);

}  // namespace uvmsim::hip
