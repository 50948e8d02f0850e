// The number of threads that compute for the device: PyTorch's number when the kernels were
// installed, whatever thread calls an operator. A program's pinning thread, for example, sets its
// CPU threads to one, and those of every later thread. A device does not become slower by that, and
// does not round differently.
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
