# Debian packages.

execute_process(COMMAND gzip -9nc ${changelog} OUTPUT_FILE ${changelog}.gz COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN LISTS components)
  install(FILES ${copyright} ${changelog}.gz COMPONENT ${component}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${${component}_package})
  # The first line of a description is the summary.
  string(TOUPPER ${component} upper)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${${component}_summary}\n${${component}_description}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${${component}_package})
endforeach()

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# By hand: dpkg-shlibdeps reads this machine's libraries, and not the floor that the files are linked for
# (glibc-floor/README.md). Debian 13 has librdmacm1 by another name.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
set(libc "libc6 (>= 2.17)")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/../debian)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION net)
set(CPACK_DEBIAN_TOOL_PACKAGE_DEPENDS "${libc}, libringroad (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TOOL_PACKAGE_RECOMMENDS "libringroad-verbs (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS "bash-completion, iproute2, rdma-core, prometheus, python3-matplotlib, sysbench, mariadb-server, perftest")
set(CPACK_DEBIAN_TOOL_PACKAGE_CONTROL_EXTRA
    "${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS "${libc}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "ringroad (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "libringroad-verbs (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_VERBS_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_VERBS_PACKAGE_DEPENDS
    "${libc}, libringroad (= ${PROJECT_VERSION}), libibverbs1 (>= 1.1.6), librdmacm1t64 | librdmacm1 (>= 1.0.15), ibverbs-providers")
set(CPACK_DEBIAN_VERBS_PACKAGE_SUGGESTS "rdma-core")
