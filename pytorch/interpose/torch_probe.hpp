// Finds out whether PyTorch with CUDA is in this process, and which version, without linking to it
// and without Python. For code that must decide before it may load anything built against torch:
// the preload library and the kernels of the simulated device. It owns nothing. Any thread may call
// it at any time, also while libraries are being loaded.
#pragma once

#include <string>

namespace uvm {

struct TorchInProcess {
  bool cuda_libraries_mapped = false;  // both libtorch_cuda.so and libc10_cuda.so
  bool python_mapped = false;          // libtorch_python.so
  std::string library_dir;             // folder of libtorch_cuda.so; empty: not mapped
  std::string version;                 // as torch.__version__, "2.11.0+cu130"; empty: unreadable
  std::string cuda_version;            // torch was built for it, "13.0"; empty: unreadable or none
  int major = 0;                       // major and minor of `version`; 0.0: unreadable
  int minor = 0;
};

// Looks at the mapped libraries and at torch's version.py. A mapped library may not be initialised:
// it appears here before its static initialisers have run.
TorchInProcess find_torch() noexcept;

}  // namespace uvm
