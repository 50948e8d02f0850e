// Names and texts of HIP's error values. The functions return null for an unknown number.
#pragma once

namespace uvmsim::hip {

const char* runtime_error_name(int error);
const char* runtime_error_text(int error);

}  // namespace uvmsim::hip
