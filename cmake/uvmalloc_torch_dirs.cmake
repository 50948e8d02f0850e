# The torch packages that plugins are built for.
set(UVMALLOC_TORCH_DIRS "" CACHE STRING
    "Folders of installed torch packages (those that hold lib/ and include/), one plugin for each; AUTO: that of this Python; empty: none")
if(UVMALLOC_TORCH_DIRS STREQUAL "AUTO")
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
  # Not by an import: pip hides installed packages from a build.
  execute_process(COMMAND "${Python3_EXECUTABLE}" -I -c "import sysconfig; print(sysconfig.get_path('purelib'))"
                  OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS "${packages}/torch/include/ATen/ATen.h")
    message(FATAL_ERROR "uvmalloc: no torch in ${packages}, and the plugin is compiled for a torch: install one there, or name "
                        "folders of torch packages with --config-settings=cmake.define.UVMALLOC_TORCH_DIRS=FOLDER")
  endif()
  set(UVMALLOC_TORCH_DIRS "${packages}/torch")
endif()
