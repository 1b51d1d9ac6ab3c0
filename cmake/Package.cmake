# cmake --install: programs, public headers, static libraries, and the package that
# find_package(ddprun) reads. Parts that were not built (no LibTorch, no NCCL) are not
# installed. If a project asks for one, the package reports this. Components:
#   programs     what a wheel holds
#   system       what an administrator's installation adds: the unit, ddprun-ckpt
#   development  headers and libraries, in a build with LibTorch
include(CMakePackageConfigHelpers)

# A target of everything that is installed: after it `cmake --install` works.
add_custom_target(ddprun_installed)

# Ends the install of `component` with one line before it has written anything, if one of
# `files` is not built.
function(check_that_all_is_built component files)
  install(CODE "
    set(files \"${files}\")
    foreach(file IN LISTS files)
      if(NOT EXISTS \"\${file}\")
        message(FATAL_ERROR
          \"\${file} is not built: nothing was installed; run \"
          \"cmake --build ${CMAKE_BINARY_DIR} --target ddprun_installed\")
      endif()
    endforeach()" COMPONENT ${component})
endfunction()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)

# pip puts the scripts of a wheel (pyproject.toml) on PATH. The wheel's data go below the
# environment's root.
if(SKBUILD)
  set(programs_dir ${SKBUILD_SCRIPTS_DIR})
  set(man_dir ${SKBUILD_DATA_DIR}/share/man)
  set(share_dir ${SKBUILD_DATA_DIR}/share)
else()
  set(programs_dir ${CMAKE_INSTALL_BINDIR})
  set(man_dir ${CMAKE_INSTALL_MANDIR})
  set(share_dir ${CMAKE_INSTALL_DATADIR})
endif()
set(programs ddprun ddprun-bench ddp-rendezvous ddp-store)
add_dependencies(ddprun_installed ${programs})
list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE program_files)
set(printed_dir ${CMAKE_CURRENT_BINARY_DIR}/printed)
set(printed_files ${printed_dir}/ddprun.1 ${printed_dir}/ddprun ${printed_dir}/_ddprun)
check_that_all_is_built(programs "${program_files};${printed_files}")
check_that_all_is_built(system $<TARGET_FILE:ddprun-ckpt>)
add_dependencies(ddprun_installed ddprun-ckpt)
# The worker of `ddprun bench` needs no LibTorch.
set_target_properties(ddprun-bench PROPERTIES EXCLUDE_FROM_ALL OFF)
if(NOT SKBUILD)
  # It needs no LibTorch. A build without LibTorch builds little else of its folder.
  set_target_properties(ddprun-ckpt PROPERTIES EXCLUDE_FROM_ALL OFF)
endif()
if(TARGET ddprun_worker)
  set(archives ddprun_worker)
  if(TARGET ddprun_worker_cuda)
    list(APPEND archives ddprun_worker_cuda)
  endif()
  add_dependencies(ddprun_installed ${archives})
  list(TRANSFORM archives REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE archive_files)
  check_that_all_is_built(development "${archive_files}")
endif()
install(TARGETS ${programs} RUNTIME DESTINATION ${programs_dir} COMPONENT programs)
install(TARGETS ddprun-ckpt RUNTIME DESTINATION ${programs_dir} COMPONENT system)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT system)
install(FILES packaging/ddp-rendezvous.sysusers DESTINATION lib/sysusers.d
        RENAME ddp-rendezvous.conf COMPONENT system)
if(SKBUILD)
  # The engine of the Python package. A wheel builds worker_lib on demand only: this demands it.
  add_custom_target(wheel_library ALL)
  add_dependencies(wheel_library ddprun_cpu)
  install(TARGETS ddprun_cpu LIBRARY DESTINATION ${SKBUILD_PLATLIB_DIR}/ddprun COMPONENT programs)
endif()

# The prefix is known only at the install (cmake --install --prefix), so ExecStart is set then.
set(unit ddp-rendezvous.service)
install(CODE "
  file(READ \"${CMAKE_CURRENT_SOURCE_DIR}/packaging/${unit}\" unit)
  string(REPLACE \"ExecStart=/usr/bin/\"
    \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
  set(file \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${unit}\")
  file(WRITE \"\$ENV{DESTDIR}\${file}\" \"\${unit}\")
  file(CHMOD \"\$ENV{DESTDIR}\${file}\"
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${file}\")" COMPONENT system)

# ddprun prints the manual page and the shells' completions.
function(install_what_ddprun_prints file destination)
  set(printed ${printed_dir}/${file})
  add_custom_command(OUTPUT ${printed}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${printed_dir}
    COMMAND ddprun ${ARGN} > ${printed}
    DEPENDS ddprun VERBATIM)
  add_custom_target(print_${file} ALL DEPENDS ${printed})
  add_dependencies(ddprun_installed print_${file})
  install(FILES ${printed} DESTINATION ${destination} COMPONENT programs)
endfunction()
install_what_ddprun_prints(ddprun.1 ${man_dir}/man1 man-page)
install_what_ddprun_prints(ddprun ${share_dir}/bash-completion/completions completion bash)
install_what_ddprun_prints(_ddprun ${share_dir}/zsh/site-functions completion zsh)

set(DDPRUN_HAS_WORKER_CUDA OFF)
if(TARGET ddprun_worker)
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
  install(DIRECTORY worker_lib/include/ddprun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  set_target_properties(ddprun_worker PROPERTIES EXPORT_NAME worker)
  install(TARGETS ddprun_worker ddprun_worker_headers
    EXPORT ddprun_worker ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ddprun_worker NAMESPACE ddprun:: DESTINATION ${package_dir}
          FILE ddprun-worker.cmake)

  # A separate library, because its users need NCCL and the CUDA run-time.
  if(TARGET ddprun_worker_cuda)
    set(DDPRUN_HAS_WORKER_CUDA ON)
    set_target_properties(ddprun_worker_cuda PROPERTIES EXPORT_NAME worker_cuda)
    install(TARGETS ddprun_worker_cuda
      EXPORT ddprun_worker_cuda ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT ddprun_worker_cuda NAMESPACE ddprun:: DESTINATION ${package_dir}
            FILE ddprun-worker_cuda.cmake)
  endif()

  # For builds without CMake.
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
             BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
             OUTPUT_VARIABLE pkg_config_to_prefix)
  set(pkg_config_files ddprun.pc)
  if(DDPRUN_HAS_WORKER_CUDA)
    list(APPEND pkg_config_files ddprun-cuda.pc)
    cmake_path(GET NCCL_LIBRARY PARENT_PATH nccl_dir)
    cmake_path(GET NCCL_LIBRARY FILENAME nccl_file)
    cmake_path(GET CUDART_LIBRARY PARENT_PATH cudart_dir)
    cmake_path(GET CUDART_LIBRARY FILENAME cudart_file)
  endif()
  foreach(file IN LISTS pkg_config_files)
    configure_file(cmake/${file}.in ${CMAKE_CURRENT_BINARY_DIR}/${file} @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endforeach()

  configure_package_config_file(cmake/ddprunConfig.cmake.in
    ${CMAKE_CURRENT_BINARY_DIR}/ddprunConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ddprunConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES
      ${CMAKE_CURRENT_BINARY_DIR}/ddprunConfig.cmake
      ${CMAKE_CURRENT_BINARY_DIR}/ddprunConfigVersion.cmake
      cmake/FindLibTorch.cmake
      cmake/FindNCCL.cmake
    DESTINATION ${package_dir})
endif()

if(NOT CMAKE_CROSSCOMPILING)  # dpkg-shlibdeps knows this system's libraries only
  include(DebianPackages)  # cpack -G DEB
endif()
