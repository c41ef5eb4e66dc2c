# RPM packages, for RHEL 7 and its kin, Fedora and SUSE.

foreach(component IN LISTS components)
  install(FILES ${copyright} COMPONENT ${component}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/${${component}_package})
  string(TOUPPER ${component} upper)
  set(CPACK_RPM_${upper}_PACKAGE_NAME ${${component}_package})
  set(CPACK_RPM_${upper}_PACKAGE_SUMMARY "${${component}_summary}")
  set(CPACK_RPM_${upper}_PACKAGE_DESCRIPTION "${${component}_description}")
endforeach()

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Unstated")
set(CPACK_RPM_PACKAGE_GROUP "System Environment/Libraries")
set(CPACK_RPM_CHANGELOG_FILE ${changelog})
# RHEL 7 reads no newer one.
set(CPACK_RPM_COMPRESSION_TYPE xz)
# Links by build id are for debuggers, and there are no debugging packages.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define _build_id_links none")
# By hand: the scripts of `ringroad bench` would ask for Python. Libraries go by what they provide, as
# distributions give their packages different names.
set(CPACK_RPM_PACKAGE_AUTOREQPROV OFF)
set(libc "libc.so.6(GLIBC_2.17)(64bit)")
set(CPACK_RPM_LIBRARY_PACKAGE_REQUIRES "${libc}")
set(CPACK_RPM_TOOL_PACKAGE_REQUIRES "${libc}, libringroad = ${PROJECT_VERSION}")
set(CPACK_RPM_VERBS_PACKAGE_REQUIRES "${libc}, libringroad = ${PROJECT_VERSION}, libibverbs.so.1(IBVERBS_1.1)(64bit), librdmacm.so.1(RDMACM_1.0)(64bit)")

set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/../rpm)
set(CPACK_RPM_TOOL_POST_INSTALL_SCRIPT_FILE ${scripts}/post)
set(CPACK_RPM_TOOL_PRE_UNINSTALL_SCRIPT_FILE ${scripts}/preun)
set(CPACK_RPM_TOOL_POST_UNINSTALL_SCRIPT_FILE ${scripts}/postun)
# Folders that other packages own.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
    /etc /usr/lib64 /usr/libexec /usr/lib/systemd /usr/lib/systemd/system
    /usr/lib/systemd/system-generators /usr/lib/tmpfiles.d /usr/share/licenses /usr/share/man
    /usr/share/man/man1 /usr/share/man/man5 /usr/share/man/man7 /usr/share/bash-completion
    /usr/share/bash-completion/completions)
