# What `cmake --install` lays down, by component. The tree can be moved: all paths in it are relative.
#   Runtime      libuvmalloc.so, to be linked with, and libuvmalloc_preload.so
#   Development  headers, the static library, the CMake package and the pkg-config files
#   Simulator    the stand-in libraries, in a folder of their own for LD_LIBRARY_PATH, and the header that controls them
#   Tools        the programs behind `uvmalloc plan` and `uvmalloc trace`, and libuvmalloc_pipelines.so
#   Documents    licences, notices of others' licences, and documentation
# Libraries come without debug information, which is ten times their size; those of a sanitizer keep it for its findings.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(private_dir "${CMAKE_INSTALL_LIBDIR}/uvmalloc")
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/uvmalloc")

foreach(library uvmalloc_static uvmalloc_shared)
  target_include_directories(${library} INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${library} INTERFACE cxx_std_20)
endforeach()
set_target_properties(uvmalloc_shared PROPERTIES EXPORT_NAME uvmalloc)

# What the objects of the static library call. A project in C alone has the C++ library from here; it calls those behind it.
set(static_libraries stdc++ ${CMAKE_DL_LIBS} pthread m)
list(TRANSFORM static_libraries PREPEND "-l" OUTPUT_VARIABLE pc_static_libraries)
if(TARGET uvmalloc_jemalloc) # no library of the system: it is built for us and travels with ours
  set(archive libuvmalloc_jemalloc.a)
  install(FILES "$<TARGET_FILE:uvmalloc_jemalloc>" DESTINATION "${private_dir}" RENAME ${archive} COMPONENT Development)
  uvmalloc_strip_installed(Development "${private_dir}/${archive}")
  cmake_path(ABSOLUTE_PATH private_dir BASE_DIRECTORY "$<INSTALL_PREFIX>" OUTPUT_VARIABLE archive_dir)
  target_link_libraries(uvmalloc_static INTERFACE "$<INSTALL_INTERFACE:${archive_dir}/${archive}>")
  # Not by its path: blanks are escaped in folders alone.
  list(PREPEND pc_static_libraries "-L\${libdir}/uvmalloc" "-l:${archive}")
endif()
target_link_libraries(uvmalloc_static INTERFACE "$<INSTALL_INTERFACE:${static_libraries}>")

install(TARGETS uvmalloc_static uvmalloc_shared EXPORT uvmallocTargets
        ARCHIVE COMPONENT Development
        LIBRARY COMPONENT Runtime NAMELINK_COMPONENT Runtime)
if(TARGET uvmalloc_preload)
  install(TARGETS uvmalloc_preload LIBRARY COMPONENT Runtime)
endif()
uvmalloc_strip_installed(Development "${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:uvmalloc_static>")
foreach(library uvmalloc_shared uvmalloc_preload)
  if(TARGET ${library})
    uvmalloc_strip_installed(Runtime "${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:${library}>")
  endif()
endforeach()
install(EXPORT uvmallocTargets NAMESPACE uvmalloc:: DESTINATION "${package_dir}" COMPONENT Development)

install(DIRECTORY include/uvmalloc DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT Development
        PATTERN sim EXCLUDE)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/uvmallocConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/uvmallocConfig.cmake" INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/uvmallocConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/uvmallocConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/uvmallocConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT Development)

cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE pc_libdir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
           OUTPUT_VARIABLE pc_includedir)
string(REGEX REPLACE "[^/]+" ".." pc_up "${pc_libdir}/pkgconfig")
list(JOIN pc_static_libraries " " pc_static_libraries)
foreach(name uvmalloc uvmalloc-static)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
          COMPONENT Development)
endforeach()

if(UVMALLOC_BUILD_SIM)
  # Never beside libuvmalloc.so: a libcuda.so.1 there would stand in for the real one.
  function(uvmalloc_install_stand_ins folder)
    install(TARGETS ${ARGN} LIBRARY DESTINATION "${folder}" COMPONENT Simulator NAMELINK_COMPONENT Simulator)
    foreach(library IN LISTS ARGN)
      uvmalloc_strip_installed(Simulator "${folder}/$<TARGET_FILE_NAME:${library}>")
    endforeach()
  endfunction()
  uvmalloc_install_stand_ins("${private_dir}/sim"
    uvmsim uvmsim_cuda uvmsim_cudart uvmsim_cupti uvmsim_nvml uvmsim_audit uvmsim_host)
  foreach(version folder IN ZIP_LISTS UVMSIM_OLDER_DRIVERS UVMSIM_OLDER_FOLDERS)
    uvmalloc_install_stand_ins("${private_dir}/sim/${folder}" uvmsim_cuda_${version})
  endforeach()
  if(TARGET uvmsim_hip)
    uvmalloc_install_stand_ins("${private_dir}/sim/hip" uvmsim_hsa uvmsim_hip_5 uvmsim_hip_6 uvmsim_hip_7)
    install(FILES "${CMAKE_BINARY_DIR}/lib/sim/hip/libamdhip64.so" DESTINATION "${private_dir}/sim/hip"
            COMPONENT Simulator)
  endif()
  # The machines, where the library looks for them.
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/sim/profiles" DESTINATION "${private_dir}/sim" COMPONENT Simulator
          FILES_MATCHING PATTERN "*.toml")
  install(FILES include/uvmalloc/sim/uvmsim.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/uvmalloc/sim"
          COMPONENT Simulator)
endif()

if(UVMALLOC_BUILD_TOOLS AND UVMALLOC_BUILD_SIM)
  install(TARGETS uvmalloc_pipelines_shared uvmalloc_plan_program uvmalloc_machine_replay
          LIBRARY COMPONENT Tools RUNTIME COMPONENT Tools)
  uvmalloc_strip_installed(Tools "${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:uvmalloc_pipelines_shared>")
  foreach(program uvmalloc_plan_program uvmalloc_machine_replay)
    uvmalloc_strip_installed(Tools "${CMAKE_INSTALL_BINDIR}/$<TARGET_FILE_NAME:${program}>")
  endforeach()
endif()

install(FILES README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md THIRD_PARTY_NOTICES
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT Documents)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT Documents
        FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg")
# Files elsewhere in the tree that these documents link to, at the same places beside them.
foreach(file allocator/README.md include/uvmalloc/uvmalloc.h bench/traces/README.md
        examples/custom_runtime/host_threads.c hipify/README.md allocator/exported_names.txt preload/exported_names.txt preload/calls.def
        include/uvmalloc/uvmalloc_runtime.h include/uvmalloc/groups.hpp include/uvmalloc/uvmalloc_groups.h
        examples/first_run.py examples/model_server.py examples/lend_the_card.py)
  cmake_path(GET file PARENT_PATH folder)
  install(FILES ${file} DESTINATION "${CMAKE_INSTALL_DOCDIR}/${folder}" COMPONENT Documents)
endforeach()
if(UVMALLOC_BUILD_SIM)
  install(FILES sim/README.md sim/lacks.md DESTINATION "${CMAKE_INSTALL_DOCDIR}/sim" COMPONENT Documents)
  install(FILES sim/profiles/README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}/sim/profiles" COMPONENT Documents)
endif()
