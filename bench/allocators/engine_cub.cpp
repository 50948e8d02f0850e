#include "bench/allocators/adapters/cub_adapter.hpp"
#include "serve.hpp"

int main() {
  uvm::bench::serve<uvm::bench::CubAdapter>();
}
