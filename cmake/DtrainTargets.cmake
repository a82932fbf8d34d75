# The four kinds of target that rooms declare. Sources are listed by name, never globbed.
#
#   dtrain_library(NAME SOURCES ... [DEPS ...])           static library; DEPS are PUBLIC
#   dtrain_program(NAME SOURCES ... [DEPS ...])           a program in <build>/bin
#   dtrain_test(NAME SOURCES ... [DEPS ...] [TIMEOUT s] [LABELS ...] [NO_MAIN])
#   dtrain_bench(NAME SOURCES ... [DEPS ...])             a program in <build>/bin, not installed

function(_dtrain_common target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} PRIVATE dtrain_warnings)
endfunction()

function(dtrain_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  _dtrain_common(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

function(dtrain_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _dtrain_common(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

function(dtrain_bench name)
  dtrain_program(${name} ${ARGN})
endfunction()

function(dtrain_test name)
  cmake_parse_arguments(ARG "NO_MAIN" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _dtrain_common(${name})
  if(ARG_NO_MAIN)
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "${DTRAIN_TEST_ENVIRONMENT}")
endfunction()
