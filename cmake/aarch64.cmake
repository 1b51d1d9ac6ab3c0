# Cross-compiles for aarch64 on x86-64, without LibTorch: Debian's compiler, the arm64 libraries
# that `scripts/setup --aarch64` unpacks in build/aarch64-root, and qemu-user to run tests.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
cmake_path(SET aarch64_root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${aarch64_root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# OpenSSL has headers here.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${aarch64_root}/usr/include/aarch64-linux-gnu")
# The C and C++ libraries are the compiler's, all others are those of build/aarch64-root.
set(library_path ${aarch64_root}/usr/lib/aarch64-linux-gnu:${aarch64_root}/lib/aarch64-linux-gnu)
# qemu-user 7.2 keeps 6 MB for each GiB of addresses that was ever mapped. The heap of a group has
# four times the machine's memory, or what the limit of file sizes permits. With 5 GiB the tests of
# groups take more than 17 GB.
set(CMAKE_CROSSCOMPILING_EMULATOR prlimit --fsize=1073741824
    qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${library_path})
