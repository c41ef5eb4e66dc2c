# Which release this is, for everything that tells it: the number stands in VERSION, the day in the
# first heading of CHANGELOG.md, which has to be that of the same release.
#
#   RINGROAD_VERSION      0.2.0
#   RINGROAD_DATE         2026-11-26
#   RINGROAD_MANUAL_DATE  November 26, 2026, as mdoc(7) wants it

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${root}/VERSION ${root}/CHANGELOG.md)
file(STRINGS ${root}/VERSION RINGROAD_VERSION LIMIT_COUNT 1)
file(STRINGS ${root}/CHANGELOG.md heading REGEX "^## " LIMIT_COUNT 1)
if(NOT heading MATCHES "^## ([0-9.]+) \\((20[0-9][0-9])-([0-9][0-9])-([0-9][0-9])\\)$"
   OR NOT CMAKE_MATCH_1 STREQUAL RINGROAD_VERSION)
  message(FATAL_ERROR "VERSION is ${RINGROAD_VERSION}, but the first release in CHANGELOG.md is "
                      "\"${heading}\": it has to be \"## ${RINGROAD_VERSION} (YYYY-MM-DD)\"")
endif()
set(RINGROAD_DATE "${CMAKE_MATCH_2}-${CMAKE_MATCH_3}-${CMAKE_MATCH_4}")
set(months January February March April May June July August September October November December)
math(EXPR month "${CMAKE_MATCH_3} - 1")
math(EXPR day "${CMAKE_MATCH_4}")
list(GET months ${month} month)
set(RINGROAD_MANUAL_DATE "${month} ${day}, ${CMAKE_MATCH_2}")
