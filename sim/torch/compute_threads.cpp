#include "sim/torch/compute_threads.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "sim/torch/simulator.hpp"

namespace uvm::sim_kernels {
namespace {

int remembered_threads = 1;

int wanted_threads() {
  static const auto is_forked_child = simulator().is_forked_child;
  return is_forked_child != nullptr && is_forked_child() != 0 ? 1 : remembered_threads;
}

// Functions of torch's own OpenMP and MKL; null if torch does not have them. They set the number of
// threads for the calling thread; at::set_num_threads would set it for the whole process.
struct ThreadControl {
  int (*omp_get_max_threads)();
  void (*omp_set_num_threads)(int);
  int (*mkl_set_num_threads_local)(int);
};

template <typename Function>
Function find_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

const ThreadControl& thread_control() {
  static const ThreadControl control = {
      find_function<decltype(ThreadControl::omp_get_max_threads)>("omp_get_max_threads"),
      find_function<decltype(ThreadControl::omp_set_num_threads)>("omp_set_num_threads"),
      find_function<decltype(ThreadControl::mkl_set_num_threads_local)>(
          "MKL_Set_Num_Threads_Local")};
  return control;
}

}  // namespace

void remember_compute_threads() {
  remembered_threads = at::get_num_threads();
}

ComputeThreads::ComputeThreads() : threads_(wanted_threads()) {
  at::get_num_threads();  // the first call sets the thread's number, so it must precede our calls
  const ThreadControl& control = thread_control();
  if (control.omp_get_max_threads && control.omp_set_num_threads) {
    own_omp_threads_ = control.omp_get_max_threads();
    if (own_omp_threads_ != threads_) control.omp_set_num_threads(threads_);
  }
  if (control.mkl_set_num_threads_local) {
    own_mkl_threads_ = control.mkl_set_num_threads_local(threads_);
  }
}

ComputeThreads::~ComputeThreads() {
  const ThreadControl& control = thread_control();
  if (control.mkl_set_num_threads_local) control.mkl_set_num_threads_local(own_mkl_threads_);
  if (own_omp_threads_ != 0 && own_omp_threads_ != threads_) {
    control.omp_set_num_threads(own_omp_threads_);
  }
}

}  // namespace uvm::sim_kernels
