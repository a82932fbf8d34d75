// Cases of a model's ends: cross-entropy with its gradient, dropout, and the largest magnitude that
// FP8 scales by.
#include <memory>

#include "bench/kernels/both_types.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/fp8.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kVocab = 32768;

struct Rows {
  std::vector<int64_t> targets;
  std::vector<float> losses, lse;
};

// Forward and gradient in one pass over each row.
template <class T>
Kernel CrossEntropy() {
  const auto rows = std::make_shared<Rows>();
  return [rows](Arena& a, const Threads& t) {
    const int64_t tokens = a.elements / kVocab;
    rows->targets.assign(static_cast<size_t>(tokens), 7);
    rows->losses.resize(static_cast<size_t>(tokens));
    rows->lse.resize(static_cast<size_t>(tokens));
    kernels::CrossEntropyForwardCpu(kernels::CrossEntropyArgs<T>{.tokens = tokens,
                                                                 .vocab = kVocab,
                                                                 .logits = a.Stream<T>(0),
                                                                 .targets = rows->targets.data(),
                                                                 .losses = rows->losses.data(),
                                                                 .lse = rows->lse.data(),
                                                                 .gradient = a.Stream<T>(1)},
                                    t);
  };
}

template <class T>
Kernel Dropout() {
  return [](Arena& a, const Threads& t) {
    kernels::DropoutCpu(kernels::DropoutArgs<T>{.count = a.elements,
                                                .p = 0.1,
                                                .stream = {.seed = 3},
                                                .x = a.Stream<T>(0),
                                                .out = a.Stream<T>(1)},
                        t);
  };
}

template <class T>
Kernel Amax() {
  return [](Arena& a, const Threads& t) {
    const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
    kernels::AmaxCpu(a.elements, {a.Stream<T>(0), dtype}, t);
  };
}

}  // namespace

std::vector<Case> TokenCases() {
  std::vector<Case> cases;
  AddBothTypes(cases, "cross_entropy", 1, 1,
               [](auto type) { return CrossEntropy<decltype(type)>(); });
  for (Case& one : cases) {
    one.shape = {{"vocabulary", kVocab}};
  }
  AddBothTypes(cases, "dropout", 1, 1, [](auto type) { return Dropout<decltype(type)>(); });
  AddBothTypes(cases, "amax", 1, 0, [](auto type) { return Amax<decltype(type)>(); });
  return cases;
}

}  // namespace dtrain::bench
