# Language level, warnings, sanitizers, output folders and include folders.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# A wheel is the same wherever it is built.
if(SKBUILD)
  add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}=uvmalloc" "-ffile-prefix-map=${CMAKE_BINARY_DIR}=build")
endif()

# Everything that is loaded at run time lies in one folder and finds its neighbours there.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

find_program(UVMALLOC_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND UVMALLOC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${UVMALLOC_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${UVMALLOC_CCACHE}")
endif()

# Where a preset asks for it (CMAKE_UNITY_BUILD), several files of a library are compiled as one: each file by itself takes most
# of its time for headers. The debug build compiles each by itself, and so does clang-tidy, which therefore shows an include
# that is missing.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

add_library(uvmalloc_flags INTERFACE)
target_compile_options(uvmalloc_flags INTERFACE -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wcast-align
                                                $<$<BOOL:${UVMALLOC_WERROR}>:-Werror>)
if(UVMALLOC_SANITIZER STREQUAL "address")
  target_compile_options(uvmalloc_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined
                                                  -fno-omit-frame-pointer)
  target_link_options(uvmalloc_flags INTERFACE -fsanitize=address,undefined)
elseif(UVMALLOC_SANITIZER STREQUAL "thread")
  target_compile_options(uvmalloc_flags INTERFACE -fsanitize=thread -O1 -fno-omit-frame-pointer)
  target_link_options(uvmalloc_flags INTERFACE -fsanitize=thread)
elseif(UVMALLOC_SANITIZER)
  message(FATAL_ERROR "UVMALLOC_SANITIZER is '${UVMALLOC_SANITIZER}'; accepted: empty, address, thread")
endif()

# <uvmalloc/file.hpp> is what is installed; "room/file.hpp" is everything else, from the root.
target_include_directories(uvmalloc_flags INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                                                    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")

# Objects of one room, used by both the static and the shared library.
function(uvmalloc_add_room name)
  add_library(uvmalloc_${name} OBJECT ${ARGN})
  target_link_libraries(uvmalloc_${name} PUBLIC uvmalloc_flags)
  if(UVMALLOC_COVERAGE)
    # Counters of several threads, and of parent and child, must not be lost.
    target_compile_options(uvmalloc_${name} PRIVATE --coverage -fprofile-abs-path -fprofile-update=atomic)
    target_link_options(uvmalloc_${name} PUBLIC --coverage)
  endif()
  # What the shared library shows is decided by its version script alone.
  set_target_properties(uvmalloc_${name} PROPERTIES CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)
endfunction()

# All rooms into one library. Rooms are no part of what is installed: the library brings their objects.
function(uvmalloc_add_rooms library)
  foreach(room runtime storage hints allocator groups)
    target_link_libraries(${library} PUBLIC "$<BUILD_INTERFACE:uvmalloc_${room}>")
  endforeach()
endfunction()

# The older versions of the simulated driver, and the folders where they lie: all that the list has but the newest.
set(driver_versions "${PROJECT_SOURCE_DIR}/sim/cuda/driver_versions.def")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${driver_versions}")
file(STRINGS "${driver_versions}" UVMSIM_OLDER_DRIVERS REGEX "^UVMSIM_DRIVER")
list(POP_BACK UVMSIM_OLDER_DRIVERS)
list(TRANSFORM UVMSIM_OLDER_DRIVERS REPLACE ".*\"(.*)\".*" "\\1" OUTPUT_VARIABLE UVMSIM_OLDER_FOLDERS)
list(TRANSFORM UVMSIM_OLDER_DRIVERS REPLACE "[^0-9]*([0-9]+).*" "\\1")

# uvmalloc_strip_installed(COMPONENT file [OPTION...]): strips an installed file, by default of its debug information.
# It goes after the rule that installs the file.
function(uvmalloc_strip_installed component file)
  if(UVMALLOC_STRIP AND NOT UVMALLOC_SANITIZER)
    set(options ${ARGN})
    if(NOT options)
      set(options --strip-debug)
    endif()
    set(exclude "")
    if(component STREQUAL "Wheel") # not a part of what is installed
      set(exclude EXCLUDE_FROM_ALL)
    endif()
    install(CODE "set(file \"${file}\")
      set(options ${options})
      set(strip \"${CMAKE_STRIP}\")
      set(objcopy \"${CMAKE_OBJCOPY}\")
      set(readelf \"${CMAKE_READELF}\")
      include(\"${PROJECT_SOURCE_DIR}/cmake/strip_file.cmake\")" COMPONENT ${component} ${exclude})
  endif()
endfunction()
