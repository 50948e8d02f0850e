# Toolchain for libraries that run on all Linux systems since 2018 (manylinux_2_28): GCC, with the glibc and the C++ library
# that scripts/older_glibc.py has put into a folder.
#   UVMALLOC_SYSROOT  that folder
#   UVMALLOC_MACHINE  x86_64 or aarch64. For another machine than this one, Debian's cross compiler, and an emulator
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES UVMALLOC_SYSROOT UVMALLOC_MACHINE)
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
if(NOT UVMALLOC_MACHINE STREQUAL host)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR "${UVMALLOC_MACHINE}")
  set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-${UVMALLOC_MACHINE};-L;/usr/${UVMALLOC_MACHINE}-linux-gnu")
  set(prefix "${UVMALLOC_MACHINE}-linux-gnu-")
endif()
set(CMAKE_C_COMPILER "${prefix}gcc")
set(CMAKE_CXX_COMPILER "${prefix}g++")
set(CMAKE_SYSROOT "${UVMALLOC_SYSROOT}")
# Debug information names no folder of this machine, so that two builds give the same bytes.
set(CMAKE_C_FLAGS_INIT "-ffile-prefix-map=${UVMALLOC_SYSROOT}=sysroot")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT} -nostdinc++ -isystem ${UVMALLOC_SYSROOT}/usr/include/c++")
# Before glibc 2.34 these were libraries of their own.
set(CMAKE_C_STANDARD_LIBRARIES "-lpthread -ldl")
set(CMAKE_CXX_STANDARD_LIBRARIES "-lpthread -ldl")
# What comes from the static C++ library stays inside each of our libraries. GCC's shared library is this machine's.
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT
      "-L${UVMALLOC_SYSROOT}/usr/lib -Wl,--exclude-libs,libstdc++_newer.a -Wl,--allow-shlib-undefined")
endforeach()
