# cmake --install: programs, public headers, static libraries, and the package that find_package(ddprun)
# reads. What was not built (no LibTorch, no NCCL) is not installed, and the package says so when asked.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)

# The component `programs` is what a Python wheel takes (pyproject.toml). What pip puts on PATH are a wheel's scripts;
# its data go below the environment's root.
if(SKBUILD)
  set(programs_dir ${SKBUILD_SCRIPTS_DIR})
  set(man_dir ${SKBUILD_DATA_DIR}/share/man)
  set(share_dir ${SKBUILD_DATA_DIR}/share)
else()
  set(programs_dir ${CMAKE_INSTALL_BINDIR})
  set(man_dir ${CMAKE_INSTALL_MANDIR})
  set(share_dir ${CMAKE_INSTALL_DATADIR})
endif()
install(TARGETS ddprun ddp-rendezvous ddp-store RUNTIME DESTINATION ${programs_dir} COMPONENT programs)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The prefix is known when it is installed (cmake --install --prefix): only then is ExecStart right.
set(unit ddp-rendezvous.service)
install(CODE "
  file(READ \"${CMAKE_CURRENT_SOURCE_DIR}/packaging/${unit}\" unit)
  string(REPLACE \"ExecStart=/usr/bin/\" \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
  file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/${unit}\" \"\${unit}\")")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${unit} DESTINATION lib/systemd/system)

# The manual page and the shells' completion say what the program says.
function(install_what_ddprun_prints file destination)
  set(printed ${CMAKE_CURRENT_BINARY_DIR}/printed/${file})
  add_custom_command(OUTPUT ${printed}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/printed
    COMMAND $<TARGET_FILE:ddprun> ${ARGN} > ${printed}
    DEPENDS ddprun VERBATIM)
  add_custom_target(print_${file} ALL DEPENDS ${printed})
  install(FILES ${printed} DESTINATION ${destination} COMPONENT programs)
endfunction()
install_what_ddprun_prints(ddprun.1 ${man_dir}/man1 man-page)
install_what_ddprun_prints(ddprun ${share_dir}/bash-completion/completions completion bash)
install_what_ddprun_prints(_ddprun ${share_dir}/zsh/site-functions completion zsh)

set(DDPRUN_HAS_WORKER_CUDA OFF)
if(TARGET ddprun_worker)
  install(TARGETS ddprun-ckpt RUNTIME DESTINATION ${programs_dir})
  install(DIRECTORY worker_lib/include/ddprun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  # ddprun::worker and the libraries of ours that it is made of.
  set_target_properties(ddprun_worker PROPERTIES EXPORT_NAME worker)
  install(TARGETS
      ddprun_acceptor
      ddprun_announcement
      ddprun_backoff
      ddprun_base
      ddprun_checkpoint_io
      ddprun_cpu_group
      ddprun_net
      ddprun_store_client
      ddprun_store_core
      ddprun_store_server
      ddprun_training_core
      ddprun_worker
      ddprun_worker_core
      ddprun_worker_headers
      ddprun_worker_store
    EXPORT ddprun_worker ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ddprun_worker NAMESPACE ddprun:: DESTINATION ${package_dir}
          FILE ddprun-worker.cmake)

  # Apart, because it needs NCCL and the CUDA run-time where it is used.
  if(TARGET ddprun_worker_cuda)
    set(DDPRUN_HAS_WORKER_CUDA ON)
    set_target_properties(ddprun_worker_cuda PROPERTIES EXPORT_NAME worker_cuda)
    install(TARGETS ddprun_worker_cuda
      EXPORT ddprun_worker_cuda ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT ddprun_worker_cuda NAMESPACE ddprun:: DESTINATION ${package_dir}
            FILE ddprun-worker_cuda.cmake)
  endif()

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
