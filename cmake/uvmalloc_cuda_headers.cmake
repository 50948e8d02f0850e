# CUDA's headers, for declarations only: nothing of ours links to CUDA at build time. They come with the torch
# wheels (nvidia/cu13/include) or with a toolkit on this machine. Without them only the libraries to link with are built,
# for HIP and for runtimes of others: what is preloaded, the simulated device and the plugins are written in CUDA's types.
set(UVMALLOC_CUDA ON CACHE BOOL "Build the CUDA runtime, and what is preloaded, simulated and plugged in")
if(NOT UVMALLOC_CUDA)
  return()
endif()
list(TRANSFORM UVMALLOC_TORCH_DIRS APPEND "/../nvidia/cu13/include" OUTPUT_VARIABLE torch_cuda_headers)
find_path(UVMALLOC_CUDA_INCLUDE_DIR cuda.h
          HINTS ${torch_cuda_headers} ENV CUDA_HOME
          PATHS /usr/local/cuda/include PATH_SUFFIXES include)
if(NOT UVMALLOC_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h not found: run scripts/setup, set UVMALLOC_CUDA_INCLUDE_DIR to a folder that holds it, or "
                      "build without CUDA (-DUVMALLOC_CUDA=OFF)")
endif()
add_library(uvmalloc_cuda_headers INTERFACE)
target_include_directories(uvmalloc_cuda_headers SYSTEM INTERFACE "${UVMALLOC_CUDA_INCLUDE_DIR}")
