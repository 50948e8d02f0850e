# HIP: its headers, for declarations only, and the translation of sources from CUDA (hipify/). The headers come with the
# torch wheels (in triton), with Debian's libamdhip64-dev, or with ROCm.
set(UVMALLOC_HIP AUTO CACHE STRING "Build the HIP runtime: ON, OFF, or AUTO: if HIP's headers are found")
if(NOT UVMALLOC_HIP MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "UVMALLOC_HIP is '${UVMALLOC_HIP}'; accepted: AUTO, ON, OFF")
endif()
list(TRANSFORM UVMALLOC_TORCH_DIRS APPEND "/../triton/backends/amd/include" OUTPUT_VARIABLE torch_hip_headers)
find_path(UVMALLOC_HIP_INCLUDE_DIR hip/hip_runtime_api.h
          HINTS ${torch_hip_headers} ENV ROCM_PATH
          PATHS /opt/rocm/include PATH_SUFFIXES include)
set(UVMALLOC_HAS_HIP OFF)
if(UVMALLOC_HIP STREQUAL "OFF")
  return()
elseif(NOT UVMALLOC_HIP_INCLUDE_DIR)
  if(UVMALLOC_HIP STREQUAL "ON")
    message(FATAL_ERROR "hip/hip_runtime_api.h not found: run scripts/setup, or set UVMALLOC_HIP_INCLUDE_DIR to a folder "
                        "that holds it")
  endif()
  message(STATUS "uvmalloc: no HIP headers, so no HIP runtime (UVMALLOC_HIP_INCLUDE_DIR)")
  return()
endif()
set(UVMALLOC_HAS_HIP ON)
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

# Interface targets for each version of the headers: the one that is built with, and others to compile against.
function(uvmalloc_add_hip_headers target folder)
  add_library(${target} INTERFACE)
  target_compile_definitions(${target} INTERFACE __HIP_PLATFORM_AMD__ __HIP_DISABLE_CPP_FUNCTIONS__)
  target_include_directories(${target} SYSTEM INTERFACE "${folder}")
endfunction()
uvmalloc_add_hip_headers(uvmalloc_hip_headers "${UVMALLOC_HIP_INCLUDE_DIR}")

# Translated files lie where their includes look for them.
set(UVMALLOC_HIPIFIED "${CMAKE_BINARY_DIR}/hip")
set(UVMALLOC_HIPIFY_TABLE "${PROJECT_SOURCE_DIR}/hipify/cuda_to_hip.csv")
target_include_directories(uvmalloc_hip_headers INTERFACE "$<BUILD_INTERFACE:${UVMALLOC_HIPIFIED}>")

# uvmalloc_hipify(OUTPUT variable BELOW folder INTO folder [CHECK file] [TABLES file...])
# Translates the files of hipify/translated.txt that lie below a folder of the root into another folder, when they are
# built. The variable gets the results.
set(UVMALLOC_HIPIFY_LIST "${PROJECT_SOURCE_DIR}/hipify/translated.txt")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${UVMALLOC_HIPIFY_LIST}")
function(uvmalloc_hipify)
  cmake_parse_arguments(arg "" "OUTPUT;BELOW;INTO;CHECK" "TABLES" ${ARGN})
  file(STRINGS "${UVMALLOC_HIPIFY_LIST}" arg_FILES REGEX "^${arg_BELOW}/")
  set(outputs "")
  foreach(file IN LISTS arg_FILES)
    string(REGEX REPLACE "cuda" "hip" translated "${file}")
    list(APPEND outputs "${arg_INTO}/${translated}")
  endforeach()
  set(check "")
  if(arg_CHECK)
    set(check --check "${arg_CHECK}")
  endif()
  set(tables "${UVMALLOC_HIPIFY_TABLE}" ${arg_TABLES})
  set(table_options ${tables})
  list(TRANSFORM table_options PREPEND "--table=")
  list(TRANSFORM arg_FILES PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE sources)
  add_custom_command(
    OUTPUT ${outputs} ${arg_CHECK}
    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/hipify/translate.py" ${table_options}
            --root "${PROJECT_SOURCE_DIR}" --output "${arg_INTO}" ${check} ${arg_FILES}
    DEPENDS "${PROJECT_SOURCE_DIR}/hipify/translate.py" ${tables} ${sources}
    COMMENT "Translating to HIP: ${arg_INTO}"
    VERBATIM)
  add_custom_target(uvmalloc_translated_${arg_BELOW} DEPENDS ${outputs}) # for scripts/tidy, which compiles nothing
  set(${arg_OUTPUT} ${outputs} PARENT_SCOPE)
endfunction()
