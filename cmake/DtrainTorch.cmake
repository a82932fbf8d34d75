# dtrain_torch: the CPU half of LibTorch from the PyPI wheel, as one imported interface target.
#
# Only libtorch_cpu and libc10 are linked, so that a CPU rank maps no CUDA library; the CUDA half is
# opened on demand by the runtime. find_package(Torch) is not used: it insists on linking all of CUDA.
# DTRAIN_TORCH names the folder that holds include/ and lib/ (./dev deps puts it into .deps/python).
set(DTRAIN_TORCH "$ENV{DTRAIN_TORCH}" CACHE PATH "LibTorch: the folder with include/ and lib/")
if(NOT DTRAIN_TORCH)
  file(GLOB _candidates ${PROJECT_SOURCE_DIR}/.deps/python/lib/python3*/site-packages/torch)
  if(_candidates)
    list(GET _candidates 0 DTRAIN_TORCH)
  endif()
endif()
if(NOT EXISTS "${DTRAIN_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found (DTRAIN_TORCH=\"${DTRAIN_TORCH}\"): run ./dev deps, or set "
                      "DTRAIN_TORCH to a folder that holds include/ and lib/libtorch_cpu.so")
endif()
message(STATUS "LibTorch: ${DTRAIN_TORCH}")

add_library(dtrain_torch INTERFACE)
target_include_directories(dtrain_torch SYSTEM INTERFACE
  ${DTRAIN_TORCH}/include ${DTRAIN_TORCH}/include/torch/csrc/api/include)
target_link_libraries(dtrain_torch INTERFACE
  ${DTRAIN_TORCH}/lib/libtorch_cpu.so ${DTRAIN_TORCH}/lib/libc10.so)
# The wheel finds its own CUDA libraries by RPATH; programs find the wheel by theirs.
target_link_options(dtrain_torch INTERFACE
  -Wl,-rpath,${DTRAIN_TORCH}/lib -Wl,--allow-shlib-undefined)
install(TARGETS dtrain_torch EXPORT dtrainTargets)
