# base/version.h's values: the version and, in a git checkout, the commit it was configured from.
set(DTRAIN_COMMIT "")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE DTRAIN_COMMIT
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(DTRAIN_VERSION_SOURCE ${PROJECT_BINARY_DIR}/generated/base/version.cc)
configure_file(${CMAKE_CURRENT_LIST_DIR}/version.cc.in ${DTRAIN_VERSION_SOURCE} @ONLY)
