// A module, not a program: Python must load torch into the process first.
#include "bench/allocators/adapters/torch_adapter.hpp"
#include "serve.hpp"

extern "C" __attribute__((visibility("default"))) void uvmalloc_bench_engine_serve() {
  uvm::bench::serve<uvm::bench::TorchAdapter>();
}
