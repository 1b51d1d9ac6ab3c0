# Finds NCCL and its CUDA run-time, and makes the target NCCL::nccl. It looks in: NCCL_ROOT,
# CUDA_HOME, the nvidia packages next to LibTorch, the system. It needs a LibTorch that was
# built with CUDA, because only then is there a tensor to send.

set(_hints "")
foreach(_dir IN ITEMS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}")
  if(_dir)
    list(APPEND _hints ${_dir})
  endif()
endforeach()
if(LibTorch_ROOT)
  cmake_path(GET LibTorch_ROOT PARENT_PATH _site_packages)
  file(GLOB _wheels "${_site_packages}/nvidia/nccl" "${_site_packages}/nvidia/cu*"
       "${_site_packages}/nvidia/cuda_runtime")
  list(APPEND _hints ${_wheels})
endif()
foreach(_dir IN ITEMS "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
  if(_dir)
    list(APPEND _hints ${_dir})
  endif()
endforeach()

# LibTorch's own NCCL comes first: a process should not have two of them.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_hints} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
             HINTS ${_hints} PATH_SUFFIXES lib lib64)
find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS ${_hints} PATH_SUFFIXES include)
# The headers of the CUDA run-time include these, which PyTorch's wheels leave out.
find_path(CUDA_CRT_INCLUDE_DIR crt/host_defines.h HINTS ${_hints} PATH_SUFFIXES include)
find_path(CUDA_CCCL_INCLUDE_DIR nv/target HINTS ${_hints} PATH_SUFFIXES include include/cccl)
find_library(CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
             HINTS ${_hints} PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY CUDART_INCLUDE_DIR CUDA_CRT_INCLUDE_DIR
                 CUDA_CCCL_INCLUDE_DIR CUDART_LIBRARY)

if(NCCL_INCLUDE_DIR)
  foreach(_macro MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _line REGEX "define NCCL_${_macro} ")
    string(REGEX MATCH "[0-9]+" _number_${_macro} "${_line}")
  endforeach()
  set(NCCL_VERSION ${_number_MAJOR}.${_number_MINOR}.${_number_PATCH})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR CUDART_LIBRARY CUDART_INCLUDE_DIR CUDA_CRT_INCLUDE_DIR
                CUDA_CCCL_INCLUDE_DIR LibTorch_HAS_CUDA
  VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::cudart SHARED IMPORTED)
  set_target_properties(NCCL::cudart PROPERTIES IMPORTED_LOCATION ${CUDART_LIBRARY})
  target_include_directories(NCCL::cudart INTERFACE ${CUDART_INCLUDE_DIR} ${CUDA_CRT_INCLUDE_DIR}
                             ${CUDA_CCCL_INCLUDE_DIR})
  add_library(NCCL::nccl SHARED IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY})
  target_include_directories(NCCL::nccl INTERFACE ${NCCL_INCLUDE_DIR})
  target_link_libraries(NCCL::nccl INTERFACE NCCL::cudart)
endif()
