# Completes the files of each package before cpack packs them, as Debian's policy asks: copyright,
# changelogs, compressed manual pages, stripped archives, no paths of this host, and the reasons for
# lintian.
set(source ${CMAKE_CURRENT_LIST_DIR}/../..)

function(compress file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(READ ${source}/LICENSE license)
file(READ ${source}/packaging/THIRD_PARTY third_party)
string(CONCAT copyright "ddprun. Its sources are the archive of the same release.\n\n${license}\n"
  "--------------------------------------------------------------------------------\n"
  "${third_party}")
set(file_permissions OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
set(folder_permissions ${file_permissions} OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)

# Empties the variables of a text file that hold paths of the host that built the package.
function(forget_paths file pattern)
  file(READ ${file} text)
  string(REGEX REPLACE "${pattern}" "\\1" text "${text}")
  file(WRITE ${file} "${text}")
endfunction()

# SOURCE_DATE_EPOCH decides the date, if it is set.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

foreach(package ddprun libddprun-dev)
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${package})
  if(NOT EXISTS ${root})
    continue()
  endif()
  set(doc ${root}/usr/share/doc/${package})
  file(REMOVE ${root}/usr/share/doc/ddprun/LICENSE)
  file(WRITE ${doc}/copyright "${copyright}")
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
  file(GLOB_RECURSE archives ${root}/usr/lib/*.a)
  foreach(archive IN LISTS archives)
    execute_process(COMMAND strip --strip-debug --remove-section=.comment
      --enable-deterministic-archives ${archive} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB_RECURSE pkg_config_files ${root}/usr/lib/*.pc)
  foreach(file IN LISTS pkg_config_files)
    forget_paths(${file} "(\n(torch|nccl|cudart)=)[^\n]*")
  endforeach()
  file(GLOB_RECURSE config_files ${root}/usr/lib/ddprunConfig.cmake)
  foreach(file IN LISTS config_files)
    forget_paths(${file} "(set\\(_ddprun_torch \")[^\"]*")
  endforeach()
  # zsh reads the completions of packages in another folder than those of /usr/local.
  if(EXISTS ${root}/usr/share/zsh/site-functions)
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.lintian-overrides
                 ${root}/usr/share/lintian/overrides/${package} COPYONLY)
  # The umask of the caller decides nothing.
  file(CHMOD_RECURSE ${root} DIRECTORY_PERMISSIONS ${folder_permissions})
  file(CHMOD_RECURSE ${root}/usr/share FILE_PERMISSIONS ${file_permissions}
       DIRECTORY_PERMISSIONS ${folder_permissions})
endforeach()
