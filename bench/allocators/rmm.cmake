# Builds RMM from a source tree: compiles only the few sources that a pool needs. A stub replaces its logger, which
# would need another library. NVTX ranges are off, as usual.
if(NOT UVMALLOC_BENCH_RMM_DIR)
  file(REMOVE "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/bench_engine_rmm") # of an earlier configuration
  return()
endif()
file(REAL_PATH "${UVMALLOC_BENCH_RMM_DIR}/cpp" rmm_dir EXPAND_TILDE)
if(NOT EXISTS "${rmm_dir}/src/mr/pool_memory_resource.cpp")
  message(FATAL_ERROR "bench: UVMALLOC_BENCH_RMM_DIR is '${UVMALLOC_BENCH_RMM_DIR}', which holds no "
                      "cpp/src/mr/pool_memory_resource.cpp; give a source tree of RMM 26.08 or later")
endif()
if(NOT UVMALLOC_CCCL_INCLUDE_DIR)
  message(FATAL_ERROR "bench: RMM needs CCCL 3.5: set UVMALLOC_CCCL_INCLUDE_DIR to a folder that holds cub/ and cuda/")
endif()

set(rmm_stubs "${CMAKE_CURRENT_BINARY_DIR}/rmm_stubs")
set(macros "#pragma once\n")
foreach(level TRACE DEBUG INFO WARN ERROR CRITICAL)
  string(APPEND macros "#define RMM_LOG_${level}(...) static_cast<void>(0)\n")
endforeach()
file(CONFIGURE OUTPUT "${rmm_stubs}/rmm/logger_macros.hpp" CONTENT "${macros}" @ONLY)
file(CONFIGURE OUTPUT "${rmm_stubs}/rapids_logger/logger.hpp" @ONLY CONTENT
     "#pragma once\n#include <string>\nnamespace rapids_logger {\nclass logger;\nclass sink;\nusing sink_ptr = sink*;\n}\n")

set(rmm_sources aligned.cpp cuda_device.cpp cuda_stream_view.cpp error.cpp runtime_shutdown.cpp
                mr/cuda_memory_resource.cpp mr/pool_memory_resource.cpp mr/detail/pool_memory_resource_impl.cpp)
list(TRANSFORM rmm_sources PREPEND "${rmm_dir}/src/")
add_library(uvmalloc_bench_rmm OBJECT ${rmm_sources})
target_include_directories(uvmalloc_bench_rmm SYSTEM PUBLIC "${rmm_dir}/include" "${rmm_stubs}"
                                                            "${UVMALLOC_CCCL_INCLUDE_DIR}")
target_compile_definitions(uvmalloc_bench_rmm PUBLIC RMM_DISABLE_NVTX LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
target_link_libraries(uvmalloc_bench_rmm PUBLIC uvmalloc_cuda_headers)
uvmalloc_bench_add_engine(rmm)
set(rmm_version "unknown")
if(EXISTS "${rmm_dir}/../VERSION")
  file(STRINGS "${rmm_dir}/../VERSION" rmm_version LIMIT_COUNT 1)
endif()
target_compile_definitions(bench_engine_rmm PRIVATE UVMALLOC_BENCH_RMM_VERSION="${rmm_version}")
target_link_libraries(bench_engine_rmm PRIVATE uvmalloc_bench_rmm)
