# What is installed beside the programs: manual pages, completion, units, examples, `ringroad bench`.
# Included by packaging/CMakeLists.txt.
#
# Wants CMAKE_INSTALL_PREFIX, what GNUInstallDirs sets, and
#
#   RINGROAD_LIBRARY_DIR  where libringroad.so is installed, below the prefix or absolute
#   RINGROAD_MANUAL       a folder with the manual pages, compressed

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH ringroad_source)
set(RINGROAD_SYSTEMD_DIR lib/systemd)
cmake_path(ABSOLUTE_PATH RINGROAD_LIBRARY_DIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE RINGROAD_FULL_LIBRARY_DIR)
set(units ${CMAKE_CURRENT_BINARY_DIR}/share)

foreach(section 1 5 7)
  install(DIRECTORY ${RINGROAD_MANUAL}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section}
          COMPONENT tool FILES_MATCHING PATTERN "*.${section}.gz")
endforeach()
install(FILES ${ringroad_source}/packaging/completion/ringroad COMPONENT tool
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)

foreach(unit ringroad@.service ringroad-exporter.service)
  configure_file(${ringroad_source}/packaging/systemd/${unit}.in ${units}/${unit} @ONLY)
  install(FILES ${units}/${unit} DESTINATION ${RINGROAD_SYSTEMD_DIR}/system COMPONENT tool)
endforeach()
install(FILES ${ringroad_source}/packaging/systemd/ringroad.conf DESTINATION lib/tmpfiles.d
        COMPONENT tool)
configure_file(${ringroad_source}/packaging/systemd/ringroad-generator.in
               ${units}/ringroad-generator @ONLY)
install(PROGRAMS ${units}/ringroad-generator COMPONENT tool
        DESTINATION ${RINGROAD_SYSTEMD_DIR}/system-generators)
foreach(example mariadb tikv)
  configure_file(${ringroad_source}/packaging/systemd/${example}.conf.in ${units}/${example}.conf @ONLY)
  install(FILES ${units}/${example}.conf RENAME ringroad.conf COMPONENT tool
          DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/systemd/${example}.service.d)
endforeach()
# What confined servers lack. Nothing here is loaded by itself: an operator does that.
install(FILES ${ringroad_source}/packaging/selinux/ringroad.te ${ringroad_source}/packaging/selinux/ringroad.fc
        ${ringroad_source}/packaging/selinux/README.md COMPONENT tool
        DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad/selinux)
install(PROGRAMS ${ringroad_source}/packaging/selinux/ringroad-selinux COMPONENT tool
        DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad/selinux)
set(RINGROAD_APPARMOR ${CMAKE_INSTALL_FULL_DATADIR}/ringroad/apparmor/ringroad)
foreach(profile ringroad sample)
  configure_file(${ringroad_source}/packaging/apparmor/${profile}.in ${units}/apparmor/${profile} @ONLY)
  install(FILES ${units}/apparmor/${profile} COMPONENT tool
          DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad/apparmor)
endforeach()
install(DIRECTORY ${ringroad_source}/packaging/policies DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples
        COMPONENT tool FILES_MATCHING PATTERN "*.toml")
install(DIRECTORY ${ringroad_source}/docs/grafana DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples
        COMPONENT tool)

# What `ringroad bench` executes.
install(FILES ${ringroad_source}/integration/bench/launch.py RENAME __main__.py COMPONENT tool
        DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad)
install(FILES ${ringroad_source}/integration/__init__.py COMPONENT tool
        DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad/integration)
foreach(part bench lib)
  install(DIRECTORY ${ringroad_source}/integration/${part} COMPONENT tool
          DESTINATION ${CMAKE_INSTALL_DATADIR}/ringroad/integration
          FILES_MATCHING PATTERN "*.py" PATTERN "*.lua" PATTERN "*.c" PATTERN "*.json"
          PATTERN "test_*" EXCLUDE PATTERN "testdata" EXCLUDE PATTERN "net_load" EXCLUDE
          PATTERN "__pycache__" EXCLUDE)
endforeach()
