# Builds Umpire from a source tree with submodules, by its own CMake, only for the host: our adapter provides device
# memory.
if(NOT UVMALLOC_BENCH_UMPIRE_DIR)
  file(REMOVE "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/bench_engine_umpire") # of an earlier configuration
  return()
endif()
file(REAL_PATH "${UVMALLOC_BENCH_UMPIRE_DIR}" umpire_dir EXPAND_TILDE)
foreach(needed blt/SetupBLT.cmake src/tpl/umpire/camp/CMakeLists.txt src/umpire/strategy/QuickPool.hpp)
  if(NOT EXISTS "${umpire_dir}/${needed}")
    message(FATAL_ERROR "bench: UVMALLOC_BENCH_UMPIRE_DIR is '${UVMALLOC_BENCH_UMPIRE_DIR}', which holds no ${needed}; "
                        "give a source tree of Umpire 2024.07 with the submodules blt and src/tpl/umpire/camp")
  endif()
endforeach()
find_package(fmt REQUIRED)
include(ExternalProject)

set(umpire_build "${CMAKE_CURRENT_BINARY_DIR}/umpire")
set(umpire_libraries "${umpire_build}/lib/libumpire.a" "${umpire_build}/lib/libcamp.a")
ExternalProject_Add(uvmalloc_bench_umpire
  SOURCE_DIR "${umpire_dir}"
  BINARY_DIR "${umpire_build}"
  CMAKE_ARGS -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
             -DBLT_CXX_STD=c++17 -Dfmt_DIR=${fmt_DIR} -DENABLE_CUDA=OFF -DENABLE_OPENMP=OFF -DENABLE_TESTS=OFF
             -DENABLE_EXAMPLES=OFF -DENABLE_BENCHMARKS=OFF -DENABLE_DOCS=OFF -DUMPIRE_ENABLE_TOOLS=OFF
             -DUMPIRE_ENABLE_LOGGING=OFF
  BUILD_COMMAND "${CMAKE_COMMAND}" --build . --target umpire
  BUILD_BYPRODUCTS ${umpire_libraries}
  INSTALL_COMMAND "")

uvmalloc_bench_add_engine(umpire)
add_dependencies(bench_engine_umpire uvmalloc_bench_umpire)
target_include_directories(
  bench_engine_umpire SYSTEM
  PRIVATE "${umpire_dir}/src" "${umpire_dir}/src/tpl" "${umpire_build}/include" "${umpire_dir}/src/tpl/umpire/camp/include"
          "${umpire_build}/src/tpl/umpire/camp/include")
target_link_libraries(bench_engine_umpire PRIVATE ${umpire_libraries} fmt::fmt ${CMAKE_DL_LIBS})
