# cpack -G DEB: the package ddprun, and libddprun-dev in a build with LibTorch.
# packaging/debian/prepare.cmake completes their files.
set(DDPRUN_MAINTAINER "ddprun authors <ddprun@packages.invalid>" CACHE STRING
    "Maintainer field of Debian packages; the project itself has no mail address")
# scripts/release sets it for a trial.
if(DDPRUN_PACKAGE_VERSION)
  set(CPACK_PACKAGE_VERSION ${DDPRUN_PACKAGE_VERSION})
else()
  set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT ${DDPRUN_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # it would come before each description
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL programs system)
if(TARGET ddprun_worker)
  list(APPEND CPACK_COMPONENTS_ALL development)
endif()
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
# The files see /usr as their prefix, not the folder in which the package is made.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/prepare.cmake)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_DDPRUN_PACKAGE_NAME ddprun)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_DDPRUN_DESCRIPTION "launcher and rendezvous service for data-parallel training
ddprun starts the workers of a training job on one node or many, and starts
them again when one fails. It has torchrun's options, environment and store
protocol, and needs neither Python nor LibTorch.
.
The package also has the rendezvous service ddp-rendezvous with a systemd unit
that nothing enables, the store ddp-store, ddprun-bench, which measures nodes,
and ddprun-ckpt, which shows and verifies checkpoints.")
# ddprun loads hwloc for --bind, OpenSSL for keys and TLS, and munge's library, when it needs them.
# ddprun-ckpt links OpenSSL, so dpkg-shlibdeps names it.
# The unit's reload runs procps' kill.
set(CPACK_DEBIAN_DDPRUN_PACKAGE_RECOMMENDS "libhwloc15, procps")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SUGGESTS "gdb, libmunge2, openssh-client")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_EXTRA "")
foreach(script postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_EXTRA
       ${PROJECT_SOURCE_DIR}/packaging/debian/${script})
endforeach()

# There is no dependency on LibTorch. Debian's libtorch-dev is too old (1.13.1 in Debian 12),
# and a program must link the version that the libraries were compiled with.
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_NAME libddprun-dev)
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_DEPENDS "libssl-dev, nlohmann-json3-dev (>= 3.9)")
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_RECOMMENDS "ddprun (= ${CPACK_PACKAGE_VERSION}-1)")
set(CPACK_DEBIAN_LIBDDPRUN-DEV_DESCRIPTION "data-parallel training for LibTorch (development files)
Headers, static libraries, a CMake package and pkg-config files: process
groups, DistributedDataParallel, samplers and checkpoints for C++ programs.
.
Programs need LibTorch ${LibTorch_VERSION}. Debian 12 has 1.13.1 (libtorch-dev).
PyTorch's wheel has it: pip install torch==${LibTorch_VERSION}. Name its folder in
CMAKE_PREFIX_PATH.")

include(CPack)
cpack_add_component_group(ddprun)
cpack_add_component_group(libddprun-dev)
cpack_add_component(programs GROUP ddprun)
cpack_add_component(system GROUP ddprun)
cpack_add_component(development GROUP libddprun-dev)
