// A module, not a program: torch has to be in the process first, and Python brings it.
#include "bench/allocators/adapters/torch_adapter.hpp"
#include "serve.hpp"

extern "C" __attribute__((visibility("default"))) void uvmalloc_bench_engine_serve() {
  uvm::bench::serve<uvm::bench::TorchAdapter>();
}
