# Installs ddprun from BUILD_DIR, or takes the one in PREFIX. Then builds the project in this
# folder against it with COMPONENT (worker or worker_cuda), outside the tree, and runs its
# program. With EXPECT_MISSING: the request for the component must fail with that text. With
# CONFIGURE_ONLY: the program is not built.
execute_process(COMMAND mktemp -d -t ddprun-package-XXXXXX OUTPUT_VARIABLE work
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/CMakeLists.txt ${CMAKE_CURRENT_LIST_DIR}/main.cc
     DESTINATION ${work}/source)

function(run what expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " flat "${output}")  # CMake wraps its messages
  string(FIND "${flat}" "${expected}" at)
  if(at EQUAL -1 OR (NOT EXPECT_MISSING AND NOT code EQUAL 0))
    file(REMOVE_RECURSE ${work})
    message(FATAL_ERROR "${what}: exit code ${code}, expected '${expected}' in:\n${output}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

if(NOT PREFIX)
  set(PREFIX ${work}/prefix)
  run("install" "Install configuration" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX})

  foreach(printed man/man1/ddprun.1 bash-completion/completions/ddprun zsh/site-functions/_ddprun)
    file(SIZE ${PREFIX}/share/${printed} size)
    if(size EQUAL 0)
      message(FATAL_ERROR "${printed} is empty")
    endif()
  endforeach()
endif()

# Packages that ddprun needs only for itself are hidden from the user's project.
foreach(package Boost CLI11 GTest)
  list(APPEND options -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
if(COMPILER_LAUNCHER)
  list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${COMPILER_LAUNCHER})
endif()
set(expected "Configuring done")
if(EXPECT_MISSING)
  set(expected ${EXPECT_MISSING})
endif()
run("configure" "${expected}"
  ${CMAKE_COMMAND} -S ${work}/source -B ${work}/build -G Ninja -DCOMPONENT=${COMPONENT}
  -DCMAKE_PREFIX_PATH=${PREFIX} -DCMAKE_BUILD_TYPE=Release
  ${options})
if(NOT EXPECT_MISSING AND NOT CONFIGURE_ONLY)
  # The folder has another name each time. ccache is told to ignore it.
  run("build" "train" ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${work} CCACHE_NOHASHDIR=1
      ${CMAKE_COMMAND} --build ${work}/build)
  run("run" "sum 3 over 1 rank(s)" ${CMAKE_COMMAND} -E env --unset=RANK --unset=WORLD_SIZE
      ${work}/build/train)
endif()
file(REMOVE_RECURSE ${work})
