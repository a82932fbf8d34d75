# DTRAIN_CUDA=ON compiles the CUDA kernels and the NCCL plugin and demands nvcc; OFF leaves them out;
# AUTO compiles them where nvcc is and something uses them: a GPU in this machine, or the tests, which
# check every kernel for every architecture. DTRAIN_HAVE_CUDA tells the rooms what was decided, and
# DTRAIN_CUDA_REASON in the cache tells packaging/ why.
set(DTRAIN_CUDA AUTO CACHE STRING "CUDA kernels and the NCCL plugin: AUTO, ON or OFF")
set_property(CACHE DTRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
# Code for 8.x, 9.0, 10.x and 12.x, and as PTX of 10.0 what the drivers of 11.x and of later GPUs
# compile: that costs no compilation of its own. A GPU without code is told at opening (CheckDeviceImage).
set(DTRAIN_CUDA_ARCHITECTURES "80-real;90a-real;100-real;100-virtual;120-real" CACHE STRING
    "GPU architectures; every one that a package ships is compiled by the tests")
if(NOT DTRAIN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DTRAIN_CUDA=\"${DTRAIN_CUDA}\" is not allowed: give AUTO, ON or OFF")
endif()

set(DTRAIN_HAVE_CUDA OFF)
set(_why "DTRAIN_CUDA=OFF")
if(NOT DTRAIN_CUDA STREQUAL "OFF")
  find_program(DTRAIN_NVCC nvcc HINTS /usr/local/cuda/bin)
  file(GLOB _gpus /proc/driver/nvidia/gpus/*)
  if(NOT DTRAIN_NVCC)
    set(_why "nvcc was found neither in PATH nor in /usr/local/cuda/bin")
    if(DTRAIN_CUDA STREQUAL "ON")
      message(FATAL_ERROR "DTRAIN_CUDA=ON, but ${_why}: install the CUDA toolkit or give AUTO or OFF")
    endif()
  elseif(DTRAIN_CUDA STREQUAL "AUTO" AND NOT _gpus AND NOT DTRAIN_TESTS)
    set(_why "this machine has no NVIDIA GPU")
  else()
    set(DTRAIN_HAVE_CUDA ON)
    if(DTRAIN_CUDA STREQUAL "ON")
      set(_why "DTRAIN_CUDA=ON")
    elseif(_gpus)
      set(_why "nvcc and an NVIDIA GPU are here")
    else()
      set(_why "nvcc is here and the tests are built")
    endif()
  endif()
endif()
set(DTRAIN_CUDA_REASON "${_why}" CACHE INTERNAL "Why the CUDA half is built or left out")

if(DTRAIN_HAVE_CUDA)
  set(CMAKE_CUDA_COMPILER ${DTRAIN_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${DTRAIN_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc 13 takes C++20 (a CUDA target's standard is CXX's).
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  find_package(CUDAToolkit REQUIRED)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    # Kernels of all architectures are in every program that has them.
    string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")
  endif()
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} for ${DTRAIN_CUDA_ARCHITECTURES} (${_why})")
else()
  message(STATUS "CUDA: left out (${_why}); DTRAIN_CUDA=ON builds it where nvcc is")
endif()
