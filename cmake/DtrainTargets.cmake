# The kinds of target that rooms declare. Sources are listed by name, never globbed.
#
#   dtrain_library(NAME SOURCES ... [DEPS ...] [NO_PCH])  static library; DEPS are PUBLIC
#   dtrain_program(NAME SOURCES ... [DEPS ...] [NO_PCH])  a program in <build>/bin, installed
#   dtrain_test(NAME SOURCES ... [DEPS ...] [TIMEOUT s] [LABELS ...] [SHARDS n] [NO_MAIN] [NO_PCH])
#                                                         SHARDS: its tests mostly wait, n at once
#   dtrain_test_program(NAME SOURCES ... [DEPS ...] [NO_MAIN] [NO_PCH])
#                                                         several files of tests, compiled in groups
#   dtrain_test_of(NAME PROGRAM FILES ... [TIMEOUT s] [LABELS ...] [SHARDS n])
#                                                         those of some of its files, as one test
#   dtrain_tests(PROGRAM TESTS x ... [PREFIX p] [FOLDER f] [SUPPORT ...] [DEPS ...] [TIMEOUT s] [NO_PCH])
#                                                         both: f/x_test.cc is the test px_test; x may have
#                                                         a folder of its own
#   dtrain_bench(NAME SOURCES ... [DEPS ...] [NO_PCH])    a program in <build>/bin, not installed
#
# A test has the label of its room (DTRAIN_TEST_LABELS of its folder) and LABELS: `./dev test LABEL`.
# Everything is compiled with -fPIC, so that one precompiled header serves libraries and programs; it
# halves the time of a fresh build. NO_PCH: the target has its own (LibTorch), or is no C++.
#
# Sources are compiled in groups of DTRAIN_UNITY files (0: each alone). g++ 12 instantiates what a
# precompiled header left pending once more in every compilation, which costs more than most of our
# files do: 6 s with LibTorch's header. Names in unnamed namespaces of one folder must differ, therefore;
# each file of tests has a namespace of its own.
# Tests are in groups of 8 files at most, for they change most; so are files of LibTorch, by runtime/.
set(DTRAIN_UNITY 16 CACHE STRING "Files compiled together; 0 compiles each alone")
if(DTRAIN_UNITY GREATER 8)
  set(_dtrain_unity_of_tests 8)
else()
  set(_dtrain_unity_of_tests ${DTRAIN_UNITY})
endif()

function(_dtrain_common target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:dtrain_warnings>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  if(DTRAIN_UNITY GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${DTRAIN_UNITY})
  endif()
endfunction()

# Another level of optimisation than the preset's -O2, where it is worth its time or its time is not
# worth it; builds without optimisation and sanitized ones keep theirs.
function(dtrain_optimise target level)
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
  endif()
endfunction()

# `header` is made once, by the target `owner`, and used by `target`.
function(_dtrain_precompile target owner header)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${header})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# The owner of the tests' precompiled header: one object file, made on first use.
function(_dtrain_test_headers)
  if(NOT TARGET dtrain_test_headers)
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/test_headers.cc CONTENT "")
    add_library(dtrain_test_headers OBJECT ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
    _dtrain_common(dtrain_test_headers)
    target_link_libraries(dtrain_test_headers PRIVATE dtrain_base GTest::gmock GTest::gtest)
    _dtrain_precompile(dtrain_test_headers dtrain_test_headers test_headers.h)
  endif()
endfunction()

function(dtrain_library name)
  cmake_parse_arguments(ARG "NO_PCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  _dtrain_common(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(NOT ARG_NO_PCH)
    _dtrain_precompile(${name} dtrain_base common_headers.h)
  endif()
endfunction()

function(dtrain_bench name)
  cmake_parse_arguments(ARG "NO_PCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _dtrain_common(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(NOT ARG_NO_PCH)
    _dtrain_precompile(${name} dtrain_base common_headers.h)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

function(dtrain_program name)
  dtrain_bench(${name} ${ARGN})
  dtrain_install_program(${name})
endfunction()

# The environment of every test on a CPU whose AMX tiles are hidden (base/system/hidden_tiles.h). Without it
# tests that make no Job, and the peers in Python, would die in LibTorch's bf16 products.
file(WRITE ${PROJECT_BINARY_DIR}/hidden_tiles_probe.cc
  "#include \"base/system/hidden_tiles.h\"\nint main() { return dtrain::AmxTilesAreHidden() ? 1 : 0; }\n")
try_run(DTRAIN_TILES_HIDDEN DTRAIN_TILES_COMPILED ${PROJECT_BINARY_DIR}/hidden_tiles_probe
  ${PROJECT_BINARY_DIR}/hidden_tiles_probe.cc
  CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR} CXX_STANDARD 20)

# A limit is there for hangs: sanitized code is slow, and gets five times as long; so do the waits in
# Python tests (tests/testing/time_bounds.py).
function(dtrain_limit_test name seconds)
  if(DTRAIN_TILES_COMPILED AND DTRAIN_TILES_HIDDEN EQUAL 1)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    set(factor 5)
    math(EXPR seconds "${factor} * ${seconds}")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT DTRAIN_TEST_TIME_FACTOR=${factor})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

function(dtrain_label_test name)
  set(labels "${ARGN}")
  list(REMOVE_DUPLICATES labels)
  set_tests_properties(${name} PROPERTIES LABELS "${labels}")
endfunction()

# A test of `./dev test long`: with every combination of what `file` otherwise tries a covering part of.
function(dtrain_all_combinations_test name program file)
  dtrain_test_of(${name} ${program} FILES ${file} TIMEOUT 900)
  dtrain_label_test(${name} long)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT DTRAIN_TEST_LONG=1)
endfunction()

function(dtrain_test_program name)
  cmake_parse_arguments(ARG "NO_MAIN;NO_PCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _dtrain_common(${name})
  dtrain_optimise(${name} -O1)  # Tests are compiled more often than they are run.
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${_dtrain_unity_of_tests})
  if(ARG_NO_MAIN)
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} dtrain_test_main)
  endif()
  if(NOT ARG_NO_PCH)
    _dtrain_test_headers()
    _dtrain_precompile(${name} dtrain_test_headers test_headers.h)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# Without FILES: all of the program.
function(dtrain_test_of name program)
  cmake_parse_arguments(ARG "" "TIMEOUT;SHARDS" "FILES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  list(TRANSFORM ARG_FILES PREPEND "--file=")
  if(ARG_SHARDS)
    add_test(NAME ${name} COMMAND ${DTRAIN_PYTHON} ${PROJECT_SOURCE_DIR}/tests/testing/in_shards.py
      ${ARG_SHARDS} $<TARGET_FILE:${program}> ${ARG_FILES})
  else()
    add_test(NAME ${name} COMMAND ${program} ${ARG_FILES})
  endif()
  dtrain_label_test(${name} ${DTRAIN_TEST_LABELS} ${ARG_LABELS})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${DTRAIN_TEST_ENVIRONMENT}")
  dtrain_limit_test(${name} ${ARG_TIMEOUT})
endfunction()

function(dtrain_test name)
  cmake_parse_arguments(ARG "NO_MAIN;NO_PCH" "TIMEOUT;SHARDS" "SOURCES;DEPS;LABELS" ${ARGN})
  set(options)
  foreach(option NO_MAIN NO_PCH)
    if(ARG_${option})
      list(APPEND options ${option})
    endif()
  endforeach()
  dtrain_test_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} ${options})
  dtrain_test_of(${name} ${name} TIMEOUT ${ARG_TIMEOUT} SHARDS ${ARG_SHARDS} LABELS ${ARG_LABELS})
endfunction()

function(dtrain_tests program)
  cmake_parse_arguments(ARG "NO_PCH" "PREFIX;FOLDER;TIMEOUT" "TESTS;SUPPORT;DEPS" ${ARGN})
  set(sources ${ARG_TESTS})
  list(TRANSFORM sources APPEND _test.cc)
  if(ARG_FOLDER)
    list(TRANSFORM sources PREPEND ${ARG_FOLDER}/)
  endif()
  set(options)
  if(ARG_NO_PCH)
    set(options NO_PCH)
  endif()
  dtrain_test_program(${program} SOURCES ${sources} ${ARG_SUPPORT} DEPS ${ARG_DEPS} ${options})
  foreach(path ${ARG_TESTS})
    get_filename_component(test ${path} NAME)
    dtrain_test_of(${ARG_PREFIX}${test}_test ${program} FILES ${test}_test.cc TIMEOUT ${ARG_TIMEOUT})
  endforeach()
endfunction()
