# RMM as its users have it: the headers and the library of its wheel. The library contains CUDA's static runtime, which
# the simulated device replaces (sim/audit/static_runtime.h).
if(NOT UVMALLOC_BENCH_RMM_DIR)
  file(REMOVE "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/bench_engine_rmm") # of an earlier configuration
  message(STATUS "bench: RMM is not compared (UVMALLOC_BENCH_RMM_DIR names a folder of its packages)")
  return()
endif()
set(rmm_dir "${UVMALLOC_BENCH_RMM_DIR}/librmm")
set(rapids_logger_dir "${UVMALLOC_BENCH_RMM_DIR}/rapids_logger")
foreach(needed "${rmm_dir}/lib64/librmm.so" "${rmm_dir}/VERSION" "${rapids_logger_dir}/lib64/librapids_logger.so")
  if(NOT EXISTS "${needed}")
    message(FATAL_ERROR "bench: UVMALLOC_BENCH_RMM_DIR is '${UVMALLOC_BENCH_RMM_DIR}', which holds no ${needed}; give a "
                        "folder into which the wheels librmm-cu13 26.10 and rapids-logger were installed")
  endif()
endforeach()
if(NOT UVMALLOC_CCCL_INCLUDE_DIR)
  message(FATAL_ERROR "bench: RMM needs CCCL 3.5: set UVMALLOC_CCCL_INCLUDE_DIR to a folder that holds cub/ and cuda/")
endif()

uvmalloc_bench_add_engine(rmm)
file(STRINGS "${rmm_dir}/VERSION" rmm_version LIMIT_COUNT 1)
target_compile_definitions(bench_engine_rmm PRIVATE UVMALLOC_BENCH_RMM_VERSION="${rmm_version}")
target_include_directories(bench_engine_rmm SYSTEM PRIVATE "${rmm_dir}/include" "${rmm_dir}/include/rapids"
                                                           "${rapids_logger_dir}/include" "${UVMALLOC_CCCL_INCLUDE_DIR}")
target_link_libraries(bench_engine_rmm PRIVATE "${rmm_dir}/lib64/librmm.so"
                                               "${rapids_logger_dir}/lib64/librapids_logger.so")
set_target_properties(bench_engine_rmm PROPERTIES INSTALL_RPATH "${rmm_dir}/lib64;${rapids_logger_dir}/lib64")
