# Warnings are errors in our code; system headers (LibTorch, Abseil) are included as SYSTEM.
# -Wno-restrict: g++ 12 warns about its own std::string (GCC bug 105329).
add_library(dtrain_warnings INTERFACE)
target_compile_options(dtrain_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror;-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
install(TARGETS dtrain_warnings EXPORT dtrainTargets)
