# Everything that is compiled against installed versions of torch: one build of the same source for each minor version.
# Sets UVMALLOC_TORCH_VERSIONS to them (2_11;2_15) and makes a target uvmalloc_torch_headers_VERSION for each; that of the
# first is uvmalloc_torch_headers too.
set(UVMALLOC_TORCH_VERSIONS "")
# For another machine than this one, torch's headers are those of this machine: they describe the same classes. Empty
# libraries with torch's names are linked, because what a plugin needs from them is found when it is loaded.
if(CMAKE_CROSSCOMPILING)
  file(WRITE "${CMAKE_BINARY_DIR}/torch_stubs/empty.c" "")
  foreach(library c10 c10_cuda torch_cpu torch_cuda)
    add_library(uvmalloc_stub_${library} SHARED "${CMAKE_BINARY_DIR}/torch_stubs/empty.c")
    set_target_properties(uvmalloc_stub_${library} PROPERTIES OUTPUT_NAME ${library}
                          LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/torch_stubs")
  endforeach()
endif()
foreach(torch_dir ${UVMALLOC_TORCH_DIRS})
  file(REAL_PATH "${torch_dir}" torch_dir EXPAND_TILDE)
  if(NOT EXISTS "${torch_dir}/include/ATen/ATen.h")
    message(FATAL_ERROR "UVMALLOC_TORCH_DIRS names '${torch_dir}', which holds no include/ATen/ATen.h; "
                        "give the folders of installed torch packages")
  endif()
  file(STRINGS "${torch_dir}/version.py" version_line REGEX "^__version__")
  if(NOT version_line MATCHES "'([0-9]+)\\.([0-9]+)\\.")
    message(FATAL_ERROR "cannot read the version of torch from ${torch_dir}/version.py")
  endif()
  set(version "${CMAKE_MATCH_1}_${CMAKE_MATCH_2}")
  string(REPLACE "_" "." minor "${version}")
  file(STRINGS "${PROJECT_SOURCE_DIR}/scripts/torch_versions.txt" served REGEX "^[0-9]")
  if(NOT "${served}" MATCHES "(^|;)${minor}\\.")
    list(JOIN served ", " served)
    message(FATAL_ERROR "uvmalloc: no plugin for torch ${minor} in ${torch_dir}; accepted: the minor versions of ${served}")
  endif()
  if(version IN_LIST UVMALLOC_TORCH_VERSIONS)
    message(FATAL_ERROR "UVMALLOC_TORCH_DIRS names torch ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} more than once")
  endif()
  list(APPEND UVMALLOC_TORCH_VERSIONS "${version}")

  # Our libraries are loaded into a process that has torch in it already: they name torch's libraries as needed and
  # carry no path to them, so that the loader takes the ones that are there.
  set(headers "uvmalloc_torch_headers_${version}")
  add_library(${headers} INTERFACE)
  target_include_directories(
    ${headers} SYSTEM INTERFACE "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
  target_compile_definitions(${headers} INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_compile_options(${headers} INTERFACE $<$<BOOL:${SKBUILD}>:-ffile-prefix-map=${torch_dir}=torch>)
  foreach(library c10 c10_cuda torch_cpu torch_cuda)
    if(CMAKE_CROSSCOMPILING)
      target_link_libraries(${headers} INTERFACE uvmalloc_stub_${library})
    else()
      target_link_libraries(${headers} INTERFACE "${torch_dir}/lib/lib${library}.so")
    endif()
  endforeach()
  target_link_options(${headers} INTERFACE -Wl,--allow-shlib-undefined $<$<BOOL:${CMAKE_CROSSCOMPILING}>:-Wl,--no-as-needed>)
  # The CUDA that this torch was built with; a toolkit's where torch came without one. Looked for each time: another
  # folder may hold this torch by then.
  unset(cuda_include_dir)
  find_path(cuda_include_dir cuda.h HINTS "${torch_dir}/../nvidia/cu13/include"
            PATHS "${UVMALLOC_CUDA_INCLUDE_DIR}" NO_DEFAULT_PATH NO_CACHE REQUIRED)
  target_include_directories(${headers} SYSTEM INTERFACE "${cuda_include_dir}")
  set(UVMALLOC_TORCH_DIR_${version} "${torch_dir}")
endforeach()
list(GET UVMALLOC_TORCH_VERSIONS 0 version)
add_library(uvmalloc_torch_headers ALIAS uvmalloc_torch_headers_${version})
