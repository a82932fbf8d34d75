# Warnings are errors in our code; system headers (LibTorch, Abseil) are included as SYSTEM.
# Off: what g++ 12 says of its own inlined std::string (GCC bugs 105329, 105651), more often so through a
# precompiled header, and of members that a designated initialiser leaves at their default.
# Files that are compiled together look like a header to -Wsubobject-linkage.
set(_dtrain_false_alarms -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                        -Wno-stringop-overread -Wno-missing-field-initializers
                        -Wno-subobject-linkage)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  # The checks that a sanitizer adds make g++ 12 see uses of an empty std::optional in LibTorch's headers.
  list(APPEND _dtrain_false_alarms -Wno-maybe-uninitialized)
endif()
add_library(dtrain_warnings INTERFACE)
target_compile_options(dtrain_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror;${_dtrain_false_alarms}>
  $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
