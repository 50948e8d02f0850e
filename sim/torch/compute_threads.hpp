// How many threads compute for the device: as many as PyTorch had when the kernels were installed,
// whatever thread an operator is called on. A program's pinning thread, for one, sets its own CPU
// threads to one and with them those of every thread that starts later; a device is not slowed down
// by that, and neither does it round differently.
//
// In a forked child it is one thread. OpenMP would wait there for the threads of its parent's pool,
// which the child does not have.
#pragma once

namespace uvm::sim_kernels {

// Remembers the calling thread's number of threads. Called once, before any scope.
void remember_compute_threads();

// Gives the calling thread that number while it lives, and then its own again. May nest.
class ComputeThreads {
 public:
  ComputeThreads();
  ~ComputeThreads();
  ComputeThreads(const ComputeThreads&) = delete;
  ComputeThreads& operator=(const ComputeThreads&) = delete;

 private:
  const int threads_;
  int own_omp_threads_ = 0;
  int own_mkl_threads_ = 0;
};

}  // namespace uvm::sim_kernels
