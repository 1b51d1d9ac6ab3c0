# Completes the files of each package before cpack packs them, as Debian's policy asks: copyright,
# changelogs, compressed manual pages, stripped archives, and the reasons for lintian.
set(source ${CMAKE_CURRENT_LIST_DIR}/../..)

function(compress file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The text of LICENSE, as a paragraph of a copyright file.
file(READ ${source}/LICENSE license)
string(REGEX MATCH "Copyright \\(c\\) ([^\n]+)\n" line "${license}")
set(copyright ${CMAKE_MATCH_1})
string(REGEX REPLACE "^.*(Redistribution and use)" "\\1" text "${license}")
string(STRIP "${text}" text)
string(REGEX REPLACE "\n\n" "\n.\n" text "${text}")
string(REPLACE "\n" "\n " text " ${text}")

# SOURCE_DATE_EPOCH decides the date, if it is set.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

foreach(package ddprun libddprun-dev)
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${package})
  if(NOT EXISTS ${root})
    continue()
  endif()
  set(doc ${root}/usr/share/doc/${package})
  file(REMOVE ${root}/usr/share/doc/ddprun/LICENSE)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright.in ${doc}/copyright @ONLY)
  configure_file(${source}/CHANGELOG.md ${doc}/changelog COPYONLY)
  string(CONCAT entry
    "ddprun (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
    "  * Version ${CPACK_PACKAGE_VERSION}: changelog.gz lists the changes.\n\n"
    " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(WRITE ${doc}/changelog.Debian "${entry}")
  compress(${doc}/changelog)
  compress(${doc}/changelog.Debian)
  file(GLOB pages ${root}/usr/share/man/man*/*[0-9])
  foreach(page IN LISTS pages)
    compress(${page})
  endforeach()
  file(GLOB archives ${root}/usr/lib/*.a)
  foreach(archive IN LISTS archives)
    execute_process(COMMAND strip --strip-debug --remove-section=.comment
      --enable-deterministic-archives ${archive} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  # zsh reads the completions of packages in another folder than those of /usr/local.
  if(EXISTS ${root}/usr/share/zsh/site-functions)
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.lintian-overrides
                 ${root}/usr/share/lintian/overrides/${package} COPYONLY)
endforeach()
