# Toolchain for 64-bit ARM on another Linux machine: Debian's cross compiler, and an emulator for the tests. Libraries are
# those of the compiler; packages are found where CMAKE_PREFIX_PATH says.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
