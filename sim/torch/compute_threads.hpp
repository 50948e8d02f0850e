// The number of threads that compute for the device: PyTorch's number when the kernels were
// installed, for operators of every calling thread. A program's pinning thread, for example, sets
// the number of CPU threads to one, for itself and every later thread. This must not make the
// device slower or change its rounding.
//
// In a forked child the number is one, because OpenMP would wait for the threads of the parent's
// pool, which the child does not have.
#pragma once

namespace uvm::sim_kernels {

// Remembers the calling thread's number of threads. Called once, before any scope.
void remember_compute_threads();

// While this object lives, the calling thread computes with the device's number of threads. May
// nest.
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
