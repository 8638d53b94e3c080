# Finds TensorRT's headers and its main library.
#
# Looks, in this order, in
#   TENSORRT_HEADERS    (CMake variable or environment): a folder with NvInferRuntime.h
#   TENSORRT_LIBRARIES  (likewise): a folder with libnvinfer.so*, for example .../site-packages/tensorrt_libs
#   TENSORRT_ROOT       (likewise): a folder with include/ and lib/ or lib64/
#   the system (/usr/include/<multiarch>, /usr/lib/<multiarch>, /usr/local/tensorrt, /opt/tensorrt)
#
# Defines TensorRT_FOUND, TensorRT_VERSION (of the library where its name tells, else of the headers),
# TensorRT_INCLUDE_DIR, TensorRT_LIBRARY and the target TensorRT::nvinfer.

set(_tensorrt_roots "")
set(_tensorrt_headers "")
set(_tensorrt_libraries "")
foreach(_pair "ROOT;_tensorrt_roots" "HEADERS;_tensorrt_headers" "LIBRARIES;_tensorrt_libraries")
  list(GET _pair 0 _name)
  list(GET _pair 1 _result)
  if(TENSORRT_${_name})
    list(APPEND ${_result} "${TENSORRT_${_name}}")
  elseif(DEFINED ENV{TENSORRT_${_name}} AND NOT "$ENV{TENSORRT_${_name}}" STREQUAL "")
    list(APPEND ${_result} "$ENV{TENSORRT_${_name}}")
  endif()
endforeach()
if(CMAKE_LIBRARY_ARCHITECTURE)
  set(_tensorrt_arch "${CMAKE_LIBRARY_ARCHITECTURE}")
else()
  set(_tensorrt_arch "${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
endif()

find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h
  PATHS ${_tensorrt_headers}
  NO_DEFAULT_PATH)
find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h
  HINTS ${_tensorrt_roots}
  PATHS /usr/include/${_tensorrt_arch} /usr/local/tensorrt /opt/tensorrt
  PATH_SUFFIXES include include/${_tensorrt_arch})

# Python wheels and some packages hold libnvinfer.so.<major> without the plain name.
set(_tensorrt_names nvinfer libnvinfer.so.11 libnvinfer.so.10)
find_library(TensorRT_LIBRARY
  NAMES ${_tensorrt_names}
  PATHS ${_tensorrt_libraries}
  NO_DEFAULT_PATH)
find_library(TensorRT_LIBRARY
  NAMES ${_tensorrt_names}
  HINTS ${_tensorrt_roots}
  PATHS /usr/lib/${_tensorrt_arch} /usr/local/tensorrt /opt/tensorrt
  PATH_SUFFIXES lib lib64 lib/${_tensorrt_arch})

set(TensorRT_VERSION "")
if(TensorRT_LIBRARY)
  get_filename_component(_tensorrt_real "${TensorRT_LIBRARY}" REALPATH)
  if(_tensorrt_real MATCHES "libnvinfer\\.so\\.([0-9.]+)$")
    set(TensorRT_VERSION "${CMAKE_MATCH_1}")
  endif()
endif()
if(TensorRT_INCLUDE_DIR AND NOT TensorRT_VERSION)
  file(STRINGS "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" _tensorrt_lines
    REGEX "#define (NV_TENSORRT|TRT)_(MAJOR|MINOR|PATCH)(_ENTERPRISE)? +[0-9]+")
  string(REGEX MATCHALL "(MAJOR|MINOR|PATCH)[A-Z_]* +[0-9]+" _tensorrt_numbers "${_tensorrt_lines}")
  list(TRANSFORM _tensorrt_numbers REPLACE "^[A-Z_]+ +" "")
  list(JOIN _tensorrt_numbers "." TensorRT_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorRT
  REQUIRED_VARS TensorRT_LIBRARY TensorRT_INCLUDE_DIR
  VERSION_VAR TensorRT_VERSION)

if(TensorRT_FOUND AND NOT TARGET TensorRT::nvinfer)
  add_library(TensorRT::nvinfer UNKNOWN IMPORTED GLOBAL)
  set_target_properties(TensorRT::nvinfer PROPERTIES
    IMPORTED_LOCATION "${TensorRT_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TensorRT_INCLUDE_DIR}")
endif()
mark_as_advanced(TensorRT_INCLUDE_DIR TensorRT_LIBRARY)
