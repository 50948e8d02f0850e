#include "bench/allocators/adapters/umpire_adapter.hpp"
#include "serve.hpp"

int main() {
  uvm::bench::serve<uvm::bench::UmpireAdapter>();
}
