#include "bench/allocators/adapters/uvmalloc_adapter.hpp"
#include "serve.hpp"

int main() {
  uvm::bench::serve<uvm::bench::UvmallocAdapter>();
}
