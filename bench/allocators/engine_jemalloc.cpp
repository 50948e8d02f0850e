#include "bench/allocators/adapters/jemalloc_adapter.hpp"
#include "serve.hpp"

int main() {
  uvm::bench::serve<uvm::bench::JemallocAdapter>();
}
