// Finds out whether PyTorch with CUDA is in this process, and which version, without linking to it
// and without Python. For code that must know this before it loads anything built against torch:
// the preload library and the kernels of the simulated device. Owns nothing. Any thread may call
// these functions at any time, even while libraries are being loaded.
#pragma once

#include <string>

namespace uvm {

struct TorchInProcess {
  bool cuda_libraries_mapped = false;  // both libtorch_cuda.so and libc10_cuda.so
  bool python_mapped = false;          // libtorch_python.so
  std::string library_dir;             // folder of libtorch_cuda.so; empty: not mapped
  std::string version;                 // as torch.__version__, "2.11.0+cu130"; empty: unreadable
  std::string cuda_version;            // CUDA of torch's build, "13.0"; empty: unreadable or none
  int major = 0;                       // major and minor of `version`; 0.0: unreadable
  int minor = 0;
};

// Looks at the mapped libraries and at torch's version.py. A library that is found may still be
// uninitialised: it is mapped before its static initialisers run.
TorchInProcess find_torch() noexcept;

}  // namespace uvm
