# jemalloc, built with uvmalloc (cmake/jemalloc), or one that was built like that before.
set(UVMALLOC_JEMALLOC_DIR "" CACHE PATH
    "Folder where cmake/jemalloc was installed (it holds include/ and lib/); empty: jemalloc is built too")
if(UVMALLOC_JEMALLOC_DIR AND NOT EXISTS "${UVMALLOC_JEMALLOC_DIR}/lib/libjemalloc_pic.a")
  message(FATAL_ERROR "UVMALLOC_JEMALLOC_DIR is '${UVMALLOC_JEMALLOC_DIR}'; accepted: a folder that holds "
                      "include/jemalloc/jemalloc.h and lib/libjemalloc_pic.a, or nothing: then jemalloc is built too")
endif()
set(jemalloc_dir "${UVMALLOC_JEMALLOC_DIR}")
if(NOT jemalloc_dir)
  add_subdirectory(cmake/jemalloc)
  set(jemalloc_dir "${UVMALLOC_BUILT_JEMALLOC}")
  file(MAKE_DIRECTORY "${jemalloc_dir}/include")
endif()

find_package(Threads REQUIRED)
add_library(uvmalloc_jemalloc STATIC IMPORTED GLOBAL)
set_target_properties(uvmalloc_jemalloc PROPERTIES
  IMPORTED_LOCATION "${jemalloc_dir}/lib/libjemalloc_pic.a"
  INTERFACE_INCLUDE_DIRECTORIES "${jemalloc_dir}/include"
  INTERFACE_LINK_LIBRARIES Threads::Threads)
if(TARGET uvmalloc_build_jemalloc)
  add_dependencies(uvmalloc_jemalloc uvmalloc_build_jemalloc)
endif()
