# Libraries of which only headers are needed: {fmt}, JSON for Modern C++, toml++, CLI11. They come from the folder third_party of
# uvmalloc's source archive, else from this system, else from upstream's repository by commit.
include(FetchContent)

# uvmalloc_find_headers(NAME file repository commit folder): the target uvmalloc_NAME_headers has the folder that holds
# `file`. In the repository, that is `folder`.
function(uvmalloc_find_headers name file repository commit folder)
  string(TOUPPER "UVMALLOC_${name}_INCLUDE_DIR" variable)
  find_path(${variable} "${file}" HINTS "${PROJECT_SOURCE_DIR}/third_party/include" NO_CMAKE_FIND_ROOT_PATH)
  if(NOT ${variable})
    message(STATUS "uvmalloc: ${file} not found (${variable}): fetching ${repository}")
    FetchContent_Declare(uvmalloc_${name} GIT_REPOSITORY "${repository}" GIT_TAG "${commit}"
                         SOURCE_SUBDIR no-such-folder) # its sources alone, not its targets
    FetchContent_MakeAvailable(uvmalloc_${name})
    set(${variable} "${uvmalloc_${name}_SOURCE_DIR}/${folder}")
  endif()
  add_library(uvmalloc_${name}_headers INTERFACE)
  target_include_directories(uvmalloc_${name}_headers SYSTEM INTERFACE "$<BUILD_INTERFACE:${${variable}}>")
endfunction()

uvmalloc_find_headers(fmt fmt/format.h https://github.com/fmtlib/fmt.git
                      a33701196adfad74917046096bf5a2aa0ab0bb50 include) # 9.1.0
uvmalloc_find_headers(json nlohmann/json.hpp https://github.com/nlohmann/json.git
                      bc889afb4c5bf1c0d8ee29ef35eaaf4c8bef8a5d include) # 3.11.2
if(UVMALLOC_BUILD_SIM)
  uvmalloc_find_headers(toml toml++/toml.h https://github.com/marzer/tomlplusplus.git
                        c635f218c0aefc801d9748841930365e54fe3089 include) # 3.3.0
endif()
if(UVMALLOC_BUILD_TOOLS)
  uvmalloc_find_headers(cli11 CLI/CLI.hpp https://github.com/CLIUtils/CLI11.git
                        70f8072f9dd2292fd0b9f9e5f58e279f60483ed3 include) # 2.1.2
endif()
