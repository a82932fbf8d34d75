# dtrain::torch: the CPU half of LibTorch from the PyPI wheel, as one imported interface target. Read
# by dtrain's own build and by the installed package.
#
# Only libtorch_cpu and libc10 are linked, so that a CPU rank maps no CUDA library; the CUDA half is
# opened on demand by the runtime. find_package(Torch) is not used: it insists on linking all of CUDA.
# The folder that holds include/ and lib/ is DTRAIN_TORCH (CMake variable, else environment), else
# DTRAIN_TORCH_DEFAULT, which the includer knows. DTRAIN_TORCH_ERROR says what is missing, in one line.
set(DTRAIN_TORCH "$ENV{DTRAIN_TORCH}" CACHE PATH "LibTorch: the folder with include/ and lib/")
foreach(_choice "$ENV{DTRAIN_TORCH}" "${DTRAIN_TORCH_DEFAULT}")
  if(NOT DTRAIN_TORCH)
    set(DTRAIN_TORCH "${_choice}")
  endif()
endforeach()
set(DTRAIN_TORCH_ERROR "")
if(NOT EXISTS "${DTRAIN_TORCH}/lib/libtorch_cpu.so")
  set(DTRAIN_TORCH_ERROR "LibTorch not found (DTRAIN_TORCH=\"${DTRAIN_TORCH}\"): set DTRAIN_TORCH to a \
folder that holds include/ and lib/libtorch_cpu.so")
elseif(NOT TARGET dtrain::torch)
  add_library(dtrain::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(dtrain::torch SYSTEM INTERFACE
    ${DTRAIN_TORCH}/include ${DTRAIN_TORCH}/include/torch/csrc/api/include)
  target_link_libraries(dtrain::torch INTERFACE
    ${DTRAIN_TORCH}/lib/libtorch_cpu.so ${DTRAIN_TORCH}/lib/libc10.so)
  # The wheel finds its own CUDA libraries by RPATH; programs find the wheel by theirs.
  target_link_options(dtrain::torch INTERFACE
    -Wl,-rpath,${DTRAIN_TORCH}/lib -Wl,--allow-shlib-undefined)
endif()
