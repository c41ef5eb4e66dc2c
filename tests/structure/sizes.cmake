# No file that is longer than one reading.
add_test(NAME structure.sizes COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_sizes ${PROJECT_SOURCE_DIR})
set_tests_properties(structure.sizes PROPERTIES LABELS structure TIMEOUT 60)
