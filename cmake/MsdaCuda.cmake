# Chooses CUDA compiler (of the system, or the Python packages nvidia-cuda-nvcc and its companions) and
# architectures, and enables the language. The default is the local GPUs, and the CPU only without one.
#
# Sets MSDA_HAS_CUDA, MSDA_CUDA_ARCHITECTURES ("" without CUDA); defines msda_place().
set(MSDA_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE MSDA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MSDA_CUDA_ARCHITECTURES "" CACHE STRING "CUDA architectures, or all; default: the local GPUs', with MSDA_CUDA=ON else all")
option(MSDA_INPLACE "Put the shared objects into the source tree's packages" OFF)
set(MSDA_HAS_CUDA OFF)

# Where nvcc is: CMake's own search comes first ($CUDACXX, PATH), then the Python packages.
function(msda_find_nvcc result)
  if(CMAKE_CUDA_COMPILER)
    set(${result} "${CMAKE_CUDA_COMPILER}" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import glob, sys; print(next((p for s in sys.path for p in sorted(glob.glob(s + '/nvidia/cu*/bin/nvcc'))), ''))"
    OUTPUT_VARIABLE packaged
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_program(MSDA_SYSTEM_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
               PATH_SUFFIXES bin)
  if(DEFINED ENV{CUDACXX})
    set(${result} "$ENV{CUDACXX}" PARENT_SCOPE)
  elseif(packaged)
    set(${result} "${packaged}" PARENT_SCOPE)
  elseif(MSDA_SYSTEM_NVCC)
    set(${result} "${MSDA_SYSTEM_NVCC}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# The architectures of the GPUs in this machine, as 90;120, or nothing.
function(msda_local_architectures result)
  execute_process(
    COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities
    ERROR_QUIET
    RESULT_VARIABLE failed)
  set(architectures "")
  if(NOT failed)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    foreach(capability IN LISTS capabilities)
      string(REPLACE "." "" architecture "${capability}")
      list(APPEND architectures "${architecture}")
    endforeach()
    list(REMOVE_DUPLICATES architectures)
  endif()
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

# Puts a shared object beside its package's __init__.py: in the wheel, and with MSDA_INPLACE or an editable
# install in the source tree.
function(msda_place target package)
  if(MSDA_CUDA_LIBRARY_DIR)
    # Not target_link_directories: CMake leaves out folders that LIBRARY_PATH named when it looked.
    target_link_options(${target} PRIVATE "-L${MSDA_CUDA_LIBRARY_DIR}")
  endif()
  # No rpath: Torch and TensorRT are loaded already when these objects are.
  set_target_properties(${target} PROPERTIES PREFIX lib SUFFIX .so SKIP_BUILD_RPATH ON)
  if(MSDA_INPLACE OR SKBUILD_STATE STREQUAL "editable")
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/${package}")
  else()
    install(TARGETS ${target} LIBRARY DESTINATION ${package} COMPONENT packages)
  endif()
endfunction()

set(nvcc "")
if(MSDA_CUDA)
  if(NOT MSDA_CUDA_ARCHITECTURES)
    msda_local_architectures(MSDA_CUDA_ARCHITECTURES)
  endif()
  msda_find_nvcc(nvcc)
  if(NOT nvcc AND NOT MSDA_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "msda: MSDA_CUDA=ON, but no CUDA compiler was found (CUDACXX, PATH, /usr/local/cuda, Python packages)")
  elseif(NOT MSDA_CUDA_ARCHITECTURES AND NOT MSDA_CUDA STREQUAL "AUTO")
    set(MSDA_CUDA_ARCHITECTURES all)
  endif()
  if(MSDA_CUDA_ARCHITECTURES STREQUAL "all")
    # Machine code for each generation, and PTX of the newest for later ones.
    set(MSDA_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90-real;100-real;120")
  endif()
endif()
if(nvcc AND MSDA_CUDA_ARCHITECTURES)
  # The Python packages keep libcudart_static.a in lib, and nvcc's own profile looks in lib64.
  get_filename_component(toolkit "${nvcc}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
  if(EXISTS "${toolkit}/lib/libcudart_static.a")
    set(ENV{LIBRARY_PATH} "${toolkit}/lib:$ENV{LIBRARY_PATH}")
    set(MSDA_CUDA_LIBRARY_DIR "${toolkit}/lib")
  endif()
  set(CMAKE_CUDA_COMPILER "${nvcc}")
  set(CMAKE_CUDA_ARCHITECTURES "${MSDA_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(MSDA_HAS_CUDA ON)
  message(STATUS "msda: CUDA kernels for architectures ${MSDA_CUDA_ARCHITECTURES}, by ${nvcc}")
else()
  if(NOT MSDA_CUDA)
    set(reason "MSDA_CUDA=${MSDA_CUDA}")
  elseif(MSDA_CUDA_ARCHITECTURES)
    set(reason "no CUDA compiler was found; docs/install.md says how to get one")
  else()
    set(reason "this machine has no GPU, and MSDA_CUDA_ARCHITECTURES is not set")
  endif()
  set(MSDA_CUDA_ARCHITECTURES "")
  message(NOTICE "msda: operators for the CPU only (${reason})")
endif()
