# dtrain::torch: the CPU half of LibTorch from the PyPI wheel, as one imported interface target. Read
# by dtrain's own build and by the installed package.
#
# Only libtorch_cpu and libc10 are linked, so that a CPU rank maps no CUDA library; the CUDA half is
# opened on demand by the runtime. find_package(Torch) is not used: it insists on linking all of CUDA.
# The folder that holds include/ and lib/ is DTRAIN_TORCH (CMake variable, else environment), else
# DTRAIN_TORCH_DEFAULT, which the includer knows. DTRAIN_TORCH_ERROR says what is missing, in one line,
# or that the release is another one than DTRAIN_TORCH_BUILT_WITH, which the installed package sets.
include(${CMAKE_CURRENT_LIST_DIR}/DtrainTorchRelease.cmake)
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
endif()
if(NOT DTRAIN_TORCH_ERROR AND DTRAIN_TORCH_BUILT_WITH)
  # Classes of LibTorch change their layout with the minor number: other headers, other programs.
  dtrain_torch_release(_release "${DTRAIN_TORCH}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _found "${_release}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _wanted "${DTRAIN_TORCH_BUILT_WITH}")
  if(NOT _found)
    set(DTRAIN_TORCH_ERROR "LibTorch in ${DTRAIN_TORCH} has no include/torch/csrc/api/include/torch/version.h \
that names its release: set DTRAIN_TORCH to a folder that holds include/ and lib/libtorch_cpu.so")
  elseif(NOT _found STREQUAL _wanted)
    set(DTRAIN_TORCH_ERROR "LibTorch in ${DTRAIN_TORCH} is release ${_release}, but this dtrain is \
built with ${DTRAIN_TORCH_BUILT_WITH}: set DTRAIN_TORCH to a folder that holds that release")
  endif()
endif()
if(NOT DTRAIN_TORCH_ERROR AND NOT TARGET dtrain::torch)
  add_library(dtrain::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(dtrain::torch SYSTEM INTERFACE
    ${DTRAIN_TORCH}/include ${DTRAIN_TORCH}/include/torch/csrc/api/include)
  target_link_libraries(dtrain::torch INTERFACE
    ${DTRAIN_TORCH}/lib/libtorch_cpu.so ${DTRAIN_TORCH}/lib/libc10.so)
  # The wheel finds its own CUDA libraries by RPATH; programs find the wheel by theirs. CMake gives it
  # to those in a build tree; an installed program of another project needs it written out.
  target_link_options(dtrain::torch INTERFACE -Wl,--allow-shlib-undefined)
  if(DTRAIN_TORCH_BUILT_WITH)
    target_link_options(dtrain::torch INTERFACE -Wl,-rpath,${DTRAIN_TORCH}/lib)
  endif()
endif()
