# The one file that says how everything is compiled: C++20, warnings, sanitizers, ccache, mold.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
include(GNUInstallDirs)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the sloppiness ccache never hits for units that use a precompiled header. With the
  # base directory it hits in another clone of the same tree.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)

# The headers' templates (Asio, JSON, LibTorch) cost each unit 2 to 4 s. So the sources of a room or
# of a test program are compiled several at a time (8, with LibTorch 12). Their names must differ,
# also in unnamed namespaces. OFF: a change of one source compiles that source only.
option(DDPRUN_UNITY "Compile several sources of a room or test program as one unit" ON)

# Options of ddprun's own targets only: warnings, sanitizers and the linker never reach a
# user's project.
add_library(ddprun_compile_options INTERFACE)
target_compile_options(ddprun_compile_options INTERFACE -Wall -Wextra -Wnon-virtual-dtor
    -Woverloaded-virtual -Wimplicit-fallthrough)
if(DDPRUN_WERROR)
  target_compile_options(ddprun_compile_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 wrongly reports dangling pointers and uninitialized variables in Asio's coroutine
  # frames. It also wrongly reports overlapping copies in `"text" + std::string(...)` (GCC bug
  # 105651).
  target_compile_options(ddprun_compile_options INTERFACE -Wno-maybe-uninitialized
      -Wno-missing-field-initializers -Wno-mismatched-new-delete -Wno-restrict -Wshadow=local)
  target_compile_options(ddprun_compile_options INTERFACE -fpch-preprocess)
  # GCC collects garbage when its heap has grown by a third of a small size. A precompiled header
  # is all live, and is searched each time. Below 1 GiB it does not: a cold build takes 8 % less.
  target_compile_options(ddprun_compile_options INTERFACE --param=ggc-min-heapsize=1048576)
else()
  target_compile_options(ddprun_compile_options INTERFACE -Wno-missing-field-initializers)
endif()
if(DDPRUN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Warns about a class with members from an unnamed namespace, unless it is in the main source.
  target_compile_options(ddprun_compile_options INTERFACE -Wno-subobject-linkage)
endif()
if(MOLD_PROGRAM)
  target_link_options(ddprun_compile_options INTERFACE -fuse-ld=mold)
endif()

# Hardening. The library checks the bounds of operator[] and similar calls in every build. The
# other options are left out with sanitizers, which find these errors themselves and do not
# work with them.
target_compile_definitions(ddprun_compile_options INTERFACE _GLIBCXX_ASSERTIONS)
if(NOT DDPRUN_SANITIZE)
  target_compile_options(ddprun_compile_options INTERFACE -fstack-protector-strong
      "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")  # needs an optimized build
  target_link_options(ddprun_compile_options INTERFACE -Wl,-z,relro,-z,now)
endif()

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Every processor and every level of optimization must give the same bits. x86-64's base has no
  # fused multiply-add, but aarch64's has one.
  target_compile_options(ddprun_compile_options INTERFACE -ffp-contract=off)
endif()

if(DDPRUN_SANITIZE)
  target_compile_definitions(ddprun_compile_options INTERFACE DDPRUN_SANITIZED)
endif()
if(DDPRUN_SANITIZE STREQUAL "address")
  target_compile_options(ddprun_compile_options INTERFACE -fsanitize=address,undefined
      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(ddprun_compile_options INTERFACE -fsanitize=address,undefined)
elseif(DDPRUN_SANITIZE STREQUAL "thread")
  target_compile_options(ddprun_compile_options INTERFACE -fsanitize=thread)
  # ThreadSanitizer does not understand fences. Asio uses them in addition to its locks, which
  # ThreadSanitizer understands.
  target_compile_definitions(ddprun_compile_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  target_link_options(ddprun_compile_options INTERFACE -fsanitize=thread)
elseif(DDPRUN_SANITIZE)
  message(FATAL_ERROR "DDPRUN_SANITIZE is '${DDPRUN_SANITIZE}': use address or thread")
endif()

# ddprun_library(NAME SOURCES... [LINKS targets...]): a static library of ddprun. Includes are
# written from the repository root, so that a path names its layer. A folder whose rooms share a
# precompiled header names it in ddprun_rooms_pch.
function(ddprun_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  add_library(${name} STATIC ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${DDPRUN_UNITY})
  if(TARGET "${ddprun_rooms_pch}")
    target_precompile_headers(${name} REUSE_FROM ${ddprun_rooms_pch})
  endif()
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name}
    PUBLIC ${arg_LINKS}
    PRIVATE $<BUILD_INTERFACE:ddprun_compile_options>)
endfunction()

# ddprun_pch(NAME CARRIER.cc HEADERS...): an object library whose precompiled header other targets
# reuse. CMake needs a source that carries it. The carrier is only preprocessed (-E), so its
# object is text, and nothing may link it.
function(ddprun_pch name carrier)
  add_library(${name} OBJECT ${carrier})
  set_source_files_properties(${carrier} PROPERTIES COMPILE_OPTIONS -E)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# ddprun_use_torch(TARGET [PCH target]): adds LibTorch (CPU) and its headers as the library
# precompiles them, or the precompiled header of another target. Only units with the same flags can
# use a precompiled header, so programs have -fPIC, too.
function(ddprun_use_torch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PCH" "")
  if(NOT arg_PCH)
    set(arg_PCH ddprun_torch_pch)
  endif()
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
  target_link_libraries(${name} PRIVATE LibTorch::cpu)
  target_precompile_headers(${name} REUSE_FROM ${arg_PCH})
endfunction()

# ddprun_program(NAME SOURCES... [LINKS targets...] [TORCH | TORCH_H]): an executable in
# build/<preset>/bin. TORCH_H: its units include torch/torch.h.
function(ddprun_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;TORCH_H" "" "SOURCES;LINKS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS} ddprun_compile_options)
  if(arg_TORCH)
    ddprun_use_torch(${name})
  elseif(arg_TORCH_H)
    ddprun_use_torch(${name} PCH ddprun_torch_h_pch)
  elseif(NOT DDPRUN_SANITIZE)
    # The C++ run-time is linked in: the launcher must start on a node that has an old one.
    # (LibTorch brings the shared one, and a process must not have two.)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# ddprun_torch_h_programs(UNIT SOURCES NAME.cc... LINKS targets...): the programs NAME, each of one
# source that includes torch/torch.h. Such a unit takes 9 s if it is empty, so all sources are
# compiled as one: the library UNIT. There each is in a namespace of its own, so its main() needs a
# return statement. All headers are included before the first namespace.
function(ddprun_torch_h_programs unit)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  list(TRANSFORM arg_SOURCES REPLACE "\\.cc$" "" OUTPUT_VARIABLE names)
  if(NOT DDPRUN_UNITY)
    foreach(name IN LISTS names)
      ddprun_program(${name} TORCH_H SOURCES ${name}.cc LINKS ${arg_LINKS})
    endforeach()
    return()
  endif()
  set(headers "")
  set(bodies "")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${arg_SOURCES})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(name IN LISTS names)
    file(STRINGS ${name}.cc includes REGEX "^#include ")
    list(APPEND headers ${includes})
    string(APPEND bodies "namespace program_${name} {\n#include \"${folder}/${name}.cc\"\n}\n")
  endforeach()
  list(REMOVE_DUPLICATES headers)
  list(JOIN headers "\n" headers)
  set(generated ${CMAKE_CURRENT_BINARY_DIR})
  file(CONFIGURE OUTPUT ${generated}/${unit}.cc @ONLY CONTENT "${headers}\n${bodies}")
  ddprun_library(${unit} SOURCES ${generated}/${unit}.cc LINKS ${arg_LINKS})
  ddprun_use_torch(${unit} PCH ddprun_torch_h_pch)
  foreach(name IN LISTS names)
    set(main ${generated}/${name}_main.cc)
    file(CONFIGURE OUTPUT ${main} @ONLY CONTENT
"namespace program_${name} {
int main(int argc, char** argv);
}
int main(int argc, char** argv) { return program_${name}::main(argc, argv); }
")
    set_source_files_properties(${main} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    ddprun_program(${name} TORCH_H SOURCES ${main} LINKS ${unit})
  endforeach()
endfunction()
