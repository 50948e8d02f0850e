# jemalloc as scripts/setup builds it: its names prefixed, no malloc of its own, no static thread-local storage. If
# UVMALLOC_JEMALLOC_DIR is empty, the newest build in the folder that checkouts share is used.
set(UVMALLOC_JEMALLOC_DIR "" CACHE PATH
    "Folder of a jemalloc built by scripts/setup (it holds include/ and lib/); empty: the newest in its cache")

function(uvmalloc_newest_jemalloc result)
  if(DEFINED ENV{UVMALLOC_CACHE})
    set(cache "$ENV{UVMALLOC_CACHE}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(cache "$ENV{XDG_CACHE_HOME}/uvmalloc")
  else()
    set(cache "$ENV{HOME}/.cache/uvmalloc")
  endif()
  file(GLOB archives "${cache}/jemalloc-*/lib/libjemalloc_pic.a")
  set(newest "")
  foreach(archive IN LISTS archives)
    if(newest STREQUAL "" OR archive IS_NEWER_THAN newest)
      set(newest "${archive}")
    endif()
  endforeach()
  if(newest)
    cmake_path(GET newest PARENT_PATH newest)
    cmake_path(GET newest PARENT_PATH newest)
  endif()
  set(${result} "${newest}" PARENT_SCOPE)
endfunction()

set(jemalloc_dir "${UVMALLOC_JEMALLOC_DIR}")
if(NOT jemalloc_dir)
  uvmalloc_newest_jemalloc(jemalloc_dir)
endif()
if(NOT EXISTS "${jemalloc_dir}/lib/libjemalloc_pic.a")
  message(FATAL_ERROR "jemalloc not found: run scripts/setup, which builds it, or set UVMALLOC_JEMALLOC_DIR to a folder "
                      "that holds include/jemalloc/jemalloc.h and lib/libjemalloc_pic.a (now: '${jemalloc_dir}')")
endif()
message(STATUS "jemalloc: ${jemalloc_dir}")

find_package(Threads REQUIRED)
add_library(uvmalloc_jemalloc STATIC IMPORTED GLOBAL)
set_target_properties(uvmalloc_jemalloc PROPERTIES
  IMPORTED_LOCATION "${jemalloc_dir}/lib/libjemalloc_pic.a"
  INTERFACE_INCLUDE_DIRECTORIES "${jemalloc_dir}/include"
  INTERFACE_LINK_LIBRARIES Threads::Threads)
