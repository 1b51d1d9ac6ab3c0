# Everything that ddprun uses from others. Each line says which part uses it.

# A project that includes this one (FetchContent) links them, too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)

# Boost: Asio, Beast, Process v2 and system::result are headers. Process v2 needs
# Boost.Filesystem.
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.81 REQUIRED COMPONENTS filesystem)

# For the launcher and the rendezvous programs only. It is compiled in.
find_package(CLI11 REQUIRED)

find_package(nlohmann_json 3.9 REQUIRED)  # control messages, reports, manifests, object collectives
# libcrypto: SHA-256 of checkpoints, proofs of keys. libssl: launcher and rendezvous programs
# only.
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)

# Only the headers, for --bind. ddprun loads the library when --bind is used.
find_path(HWLOC_INCLUDE_DIR hwloc.h DOC "Where hwloc.h is; without it there is no --bind")
if(NOT HWLOC_INCLUDE_DIR)
  message(WARNING "hwloc.h was not found (libhwloc-dev): this ddprun will refuse --bind")
endif()

if(DDPRUN_WORKER)
  find_package(LibTorch 2.2 REQUIRED)
  if(DDPRUN_EXAMPLES)
    find_package(ZLIB REQUIRED)
  endif()
  if(NOT DDPRUN_NCCL STREQUAL "OFF")
    find_package(NCCL)
    if(DDPRUN_NCCL STREQUAL "ON" AND NOT NCCL_FOUND)
      message(FATAL_ERROR
        "DDPRUN_NCCL=ON, but NCCL, the CUDA run-time or a LibTorch with CUDA was not found")
    endif()
  endif()
endif()

if(DDPRUN_TESTS)
  find_package(GTest REQUIRED)
endif()
