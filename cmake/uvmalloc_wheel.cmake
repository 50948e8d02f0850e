# What a Python wheel holds besides the Python package (component Wheel): libraries and programs, each once and under the
# name by which it is opened, because a wheel has no links.
function(uvmalloc_install_in_wheel folder)
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      continue() # a build without HIP's headers
    endif()
    get_target_property(type ${target} TYPE)
    set(name "$<TARGET_FILE_NAME:${target}>")
    if(type STREQUAL "SHARED_LIBRARY")
      set(name "$<TARGET_SONAME_FILE_NAME:${target}>")
    endif()
    install(PROGRAMS "$<TARGET_FILE:${target}>" DESTINATION "${folder}" RENAME "${name}" COMPONENT Wheel EXCLUDE_FROM_ALL)
    # Plugins keep the symbol that pytorch/interpose/class_layout.cpp compares.
    uvmalloc_strip_installed(Wheel "${folder}/${name}" --strip-unneeded
                             --keep-symbol=_ZTVN3c104cuda20CUDACachingAllocator13CUDAAllocatorE)
    add_dependencies(uvmalloc_wheel ${target})
  endforeach()
endfunction()

add_custom_target(uvmalloc_wheel)
set(lib uvmalloc/lib)
list(TRANSFORM UVMALLOC_TORCH_VERSIONS PREPEND uvmalloc_torch_ OUTPUT_VARIABLE plugins)
list(TRANSFORM UVMALLOC_TORCH_VERSIONS PREPEND uvmsim_torch_ OUTPUT_VARIABLE kernels)
uvmalloc_install_in_wheel(${lib} uvmalloc_preload uvmalloc_pipelines_shared uvmsim_torch ${plugins} ${kernels})
uvmalloc_install_in_wheel(${lib}/sim uvmsim uvmsim_audit uvmsim_host uvmsim_cuda uvmsim_cudart uvmsim_cupti uvmsim_nvml)
foreach(version folder IN ZIP_LISTS UVMSIM_OLDER_DRIVERS UVMSIM_OLDER_FOLDERS)
  uvmalloc_install_in_wheel(${lib}/sim/${folder} uvmsim_cuda_${version})
endforeach()
uvmalloc_install_in_wheel(${lib}/sim/hip uvmsim_hsa uvmsim_hip_5 uvmsim_hip_6 uvmsim_hip_7)
uvmalloc_install_in_wheel(uvmalloc/bin uvmalloc_plan_program uvmalloc_machine_replay)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/sim/profiles" DESTINATION ${lib}/sim COMPONENT Wheel EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.toml")
install(FILES "${PROJECT_SOURCE_DIR}/pytorch/python/uvmalloc_autoload.py" DESTINATION . COMPONENT Wheel EXCLUDE_FROM_ALL)
