// A call of CUDA that fails ends the program and prints its place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

inline void check(cudaError_t error, const char* call, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s in line %d: %s\n", call, line, cudaGetErrorName(error));
  std::exit(1);
}

#define CHECK(call) check((call), #call, __LINE__)
