# Finds the headers of CUTLASS 4.
#
# Looks in CUTLASS_ROOT (environment), a folder with include/, or else in the Python package nvidia-cutlass.
# Sets MSDA_CUTLASS_INCLUDE_DIR.
if(DEFINED ENV{CUTLASS_ROOT})
  set(_cutlass_root "$ENV{CUTLASS_ROOT}")
else()
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.util as u; print(u.find_spec('cutlass_library').submodule_search_locations[0] + '/source')"
    OUTPUT_VARIABLE _cutlass_root
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()
set(MSDA_CUTLASS_INCLUDE_DIR "${_cutlass_root}/include")
set(_cutlass_version "")
if(EXISTS "${MSDA_CUTLASS_INCLUDE_DIR}/cutlass/version.h")
  file(STRINGS "${MSDA_CUTLASS_INCLUDE_DIR}/cutlass/version.h" _cutlass_version REGEX "#define CUTLASS_MAJOR +4")
endif()
if(NOT _cutlass_version)
  message(FATAL_ERROR "msda: architecture 90 needs the headers of CUTLASS 4, which are not in "
    "'${MSDA_CUTLASS_INCLUDE_DIR}'. Run pip install --no-deps nvidia-cutlass==4.2.0.0 for "
    "${Python_EXECUTABLE}, or set CUTLASS_ROOT to a folder with include/cutlass")
endif()
message(STATUS "msda: CUTLASS of ${MSDA_CUTLASS_INCLUDE_DIR}")
