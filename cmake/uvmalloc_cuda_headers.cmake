# CUDA's headers, for declarations only: nothing of ours links to CUDA at build time. They come with the torch
# wheels (nvidia/cu13/include) or with a toolkit on this machine.
find_path(UVMALLOC_CUDA_INCLUDE_DIR cuda.h
          HINTS "${UVMALLOC_TORCH_DIR}/../nvidia/cu13/include" ENV CUDA_HOME
          PATHS /usr/local/cuda/include PATH_SUFFIXES include)
if(NOT UVMALLOC_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h not found: run scripts/setup, or set UVMALLOC_CUDA_INCLUDE_DIR to a folder that holds it")
endif()
add_library(uvmalloc_cuda_headers INTERFACE)
target_include_directories(uvmalloc_cuda_headers SYSTEM INTERFACE "${UVMALLOC_CUDA_INCLUDE_DIR}")
