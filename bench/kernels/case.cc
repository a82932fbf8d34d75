#include "bench/kernels/case.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "kernels/layers/layernorm.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::bench {

// Streams lie 8 KiB off a power of two, so that they do not fall on the same cache sets.
Arena::Arena(int64_t element_count) : elements(element_count), stride(element_count * 4 + 8192) {
  const auto bytes = static_cast<size_t>(stride * kStreamsMax);
  base = static_cast<char*>(std::aligned_alloc(4096, bytes));
  DT_CHECK(base != nullptr) << " no memory for " << kStreamsMax << " streams of " << stride;
  std::memset(base, 0, bytes);
  scratch.resize(static_cast<size_t>(kernels::NormBlocks(0, elements)));
  mean.resize(static_cast<size_t>(rows()));
  rstd.resize(static_cast<size_t>(head_rows()));
  workspace.resize(static_cast<size_t>(kernels::LayerNormWorkspaceFloats(rows(), kHidden)));
}

Arena::~Arena() { std::free(base); }

std::vector<Case> Cases() {
  std::vector<Case> all = FlatCases();
  for (auto* const more : {&NormCases, &ActivationCases, &RopeCases, &TokenCases, &NarrowCases}) {
    for (Case& one : more()) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace dtrain::bench
