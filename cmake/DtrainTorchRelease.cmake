# The release of the LibTorch in `folder`, "2.11.0", as the header says that every LibTorch has: torch of
# pip and LibTorch's archives alike. "" if it has none.
function(dtrain_torch_release result folder)
  set(release "")
  # Where there are both, the second one only includes the first.
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT release AND EXISTS "${folder}/include/${header}")
      file(STRINGS "${folder}/include/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers "." release)
    endif()
  endforeach()
  set(${result} "${release}" PARENT_SCOPE)
endfunction()
