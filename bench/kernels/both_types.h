// Adds a case in fp32 and in bf16, for operations whose streams are all of one type.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/numeric/float16.h"
#include "bench/kernels/case.h"

namespace dtrain::bench {

// `kernel(T{})` gives the Kernel on T. `reads` and `writes`: streams of T.
template <class MakeKernel>
void AddBothTypes(std::vector<Case>& cases, const std::string& name, int reads, int writes,
                  MakeKernel kernel) {
  cases.push_back({name + "_f32", {.read4 = reads, .write4 = writes}, kernel(float{})});
  cases.push_back({name + "_bf16", {.read2 = reads, .write2 = writes}, kernel(BFloat16{})});
}

}  // namespace dtrain::bench
