// libFuzzer's entry: any bytes are a sequence of calls. Stops if allocator and model differ.
#include <cstdio>
#include <cstdlib>

#include "tests/support/call_sequence.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  std::string broken = uvm::testing::run_call_sequence({bytes, count});
  if (broken.empty()) return 0;
  std::fprintf(stderr, "%s\n", broken.c_str());
  std::abort();
}
