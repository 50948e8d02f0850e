#include "bench/allocators/adapters/rmm_adapter.hpp"
#include "serve.hpp"

int main() {
  uvm::bench::serve<uvm::bench::RmmAdapter>();
}
