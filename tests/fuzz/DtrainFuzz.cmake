# dtrain_fuzz(NAME SOURCES ... [DEPS ...] [ITERATIONS n]): a fuzz target as a test. It runs its seeds
# and a fixed number of mutations (ITERATIONS, else 300,000) with the standalone driver. With clang and -DDTRAIN_LIBFUZZER=ON it becomes a
# real fuzzer (run it by hand: build/fuzz/NAME -max_total_time=600) and no test.
include_guard(GLOBAL)
option(DTRAIN_LIBFUZZER "Build fuzz targets for libFuzzer (clang only)" OFF)

# The library that damages inputs, and the main program that stands in for libFuzzer.
dtrain_library(dtrain_fuzz_mutate
  SOURCES ${PROJECT_SOURCE_DIR}/tests/fuzz/mutate.cc DEPS dtrain_base NO_PCH)
if(NOT DTRAIN_LIBFUZZER)
  dtrain_library(dtrain_fuzz_driver
    SOURCES ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_driver.cc DEPS dtrain_fuzz_mutate NO_PCH)
endif()

function(dtrain_fuzz name)
  cmake_parse_arguments(ARG "" "ITERATIONS" "SOURCES;DEPS" ${ARGN})
  if(DTRAIN_LIBFUZZER)
    add_executable(${name} ${ARG_SOURCES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE dtrain_fuzz_driver)
    add_test(NAME ${name} COMMAND ${name} ${ARG_ITERATIONS})
    dtrain_label_test(${name} ${DTRAIN_TEST_LABELS} fuzz)
    dtrain_limit_test(${name} 120)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE dtrain_warnings ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endfunction()
