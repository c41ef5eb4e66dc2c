# What the Debian and the RPM packages have in common.
#
#   libringroad         what is preloaded; needs libc only
#   libringroad-verbs   its RDMA part, with libibverbs and librdmacm
#   ringroad            the command, manual pages, completion, units, examples

set(components tool library verbs)
set(tool_package ringroad)
set(library_package libringroad)
set(verbs_package libringroad-verbs)
set(changelog ${CMAKE_CURRENT_BINARY_DIR}/changelog)
execute_process(
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/../changelog ${RINGROAD_FORMAT} ${CMAKE_CURRENT_SOURCE_DIR}/../../CHANGELOG.md
  OUTPUT_FILE ${changelog} COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_PACKAGE_NAME ringroad)
set(CPACK_PACKAGE_CONTACT "Ringroad maintainers <maintainers@ringroad.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(tool_summary "TCP connections of unmodified programs over RDMA: the command")
set(tool_description
"Ringroad is preloaded into programs such as database servers. Their TCP
connections to the subnets of a policy then run over RDMA queue pairs, or
over shared memory on one host, and go back to TCP whenever that is needed.

This package has the command, which starts programs, shows and moves their
connections and exports metrics; systemd units, manual pages and examples.")

set(library_summary "TCP connections of unmodified programs over RDMA: what is preloaded")
set(library_description
"The library that ringroad(1) puts into programs. It needs libc and nothing
else. Without libringroad-verbs it carries connections within the host over
shared memory, and leaves all others on TCP.")

set(verbs_summary "TCP connections of unmodified programs over RDMA: queue pairs")
set(verbs_description
"The part of the preloaded library that makes RDMA queue pairs. It is loaded
into a program when the first rule of its policy that allows RDMA applies.")
