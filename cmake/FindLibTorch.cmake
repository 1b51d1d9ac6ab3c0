# Finds LibTorch by its files and makes three targets:
#   LibTorch::cpu    torch_cpu and c10: CPU programs link it (they start in 0.19 s)
#   LibTorch::cuda   adds torch_cuda and c10_cuda, if this LibTorch has them (0.28 s)
#   LibTorch::headers
# and the variables LibTorch_VERSION, LibTorch_ROOT, LibTorch_HAS_CUDA.
#
# TorchConfig.cmake is not used. With a CUDA build of LibTorch it requires a CUDA toolkit,
# which a machine without a GPU does not have. And every program would link torch_cuda. See
# docs/decisions/.
#
# It looks in: LibTorch_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, the virtual environment .venv in
# the source folder, the active virtual environment.

set(_hints "")
if(LibTorch_ROOT)
  list(APPEND _hints ${LibTorch_ROOT})
endif()
foreach(_dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(_dir)
    cmake_path(SET _root NORMALIZE "${_dir}/../../..")  # <root>/share/cmake/Torch
    list(APPEND _hints ${_root})
  endif()
endforeach()
string(REPLACE ":" ";" _env_prefix "$ENV{CMAKE_PREFIX_PATH}")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _env_prefix)
  # torch.utils.cmake_prefix_path is <root>/share/cmake. For a downloaded LibTorch the path is
  # the root itself.
  cmake_path(SET _root NORMALIZE "${_prefix}/../..")
  list(APPEND _hints ${_prefix} ${_root})
endforeach()
file(GLOB _venvs "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch"
     "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch")
list(APPEND _hints ${_venvs})

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h HINTS ${_hints}
          PATH_SUFFIXES include)
if(LibTorch_INCLUDE_DIR)
  cmake_path(GET LibTorch_INCLUDE_DIR PARENT_PATH LibTorch_ROOT)
  # Newer versions have the numbers in the first file, older ones in the second.
  foreach(_file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${LibTorch_INCLUDE_DIR}/${_file})
      set(_version_file ${LibTorch_INCLUDE_DIR}/${_file})
      break()
    endif()
  endforeach()
  foreach(_part MAJOR MINOR PATCH)
    file(STRINGS ${_version_file} _line REGEX "define TORCH_VERSION_${_part} ")
    string(REGEX MATCH "[0-9]+" _number_${_part} "${_line}")
  endforeach()
  set(LibTorch_VERSION ${_number_MAJOR}.${_number_MINOR}.${_number_PATCH})
  # Wheels before 2.6 were built with the C++ library's old ABI: nothing would link with them.
  set(LibTorch_HAS_NEW_ABI ON)
  if(EXISTS ${LibTorch_ROOT}/share/cmake/Torch/TorchConfig.cmake)
    file(STRINGS ${LibTorch_ROOT}/share/cmake/Torch/TorchConfig.cmake _old_abi
         REGEX "_GLIBCXX_USE_CXX11_ABI=0")
    if(_old_abi)
      set(LibTorch_HAS_NEW_ABI OFF)
    endif()
  endif()
  foreach(_lib torch_cpu c10 torch_cuda c10_cuda)
    find_library(LibTorch_${_lib}_LIBRARY ${_lib} HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
    mark_as_advanced(LibTorch_${_lib}_LIBRARY)
  endforeach()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
                LibTorch_HAS_NEW_ABI
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "run scripts/setup, or name a LibTorch with CMAKE_PREFIX_PATH or Torch_DIR")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::headers INTERFACE IMPORTED)
  target_include_directories(LibTorch::headers INTERFACE ${LibTorch_INCLUDE_DIR}
      ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  foreach(_lib torch_cpu c10 torch_cuda c10_cuda)
    if(LibTorch_${_lib}_LIBRARY)
      add_library(LibTorch::${_lib} SHARED IMPORTED)
      set_target_properties(LibTorch::${_lib} PROPERTIES
        IMPORTED_LOCATION ${LibTorch_${_lib}_LIBRARY})
    endif()
  endforeach()
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_link_libraries(LibTorch::cpu INTERFACE LibTorch::torch_cpu LibTorch::c10 LibTorch::headers)
  set(LibTorch_HAS_CUDA OFF)
  if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
    set(LibTorch_HAS_CUDA ON)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    # No program uses a symbol of torch_cuda: the library registers itself when it is loaded.
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu LibTorch::c10_cuda
        -Wl,--no-as-needed LibTorch::torch_cuda -Wl,--as-needed)
  endif()
endif()
