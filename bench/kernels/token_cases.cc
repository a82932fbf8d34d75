// Cases of a model's ends: the embedding's gradient, cross-entropy with its gradient, and dropout.
#include <memory>

#include "bench/kernels/both_types.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/dropout.h"
#include "kernels/layers/embedding.h"

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

// The ids of as many tokens as the table has rows, by a multiplicative hash: some rows have no
// token, others several, and each gradient is read once.
struct Ids {
  std::vector<int64_t> ids, order, starts;
};
int64_t IdOf(int64_t token, int64_t rows) {
  return static_cast<int64_t>((static_cast<uint64_t>(token) * 0x9e3779b97f4a7c15U >> 32) %
                              static_cast<uint64_t>(rows));
}

template <class T>
Kernel EmbeddingBackward() {
  const auto ids = std::make_shared<Ids>();
  return [ids](Arena& a, const Threads& t) {
    if (ids->ids.empty()) {  // Made once, in the warm-up.
      for (int64_t token = 0; token < a.rows(); ++token) {
        ids->ids.push_back(IdOf(token, a.rows()));
      }
      ids->order.resize(ids->ids.size());
      ids->starts.resize(ids->ids.size() + 2);
    }
    kernels::EmbeddingBackwardCpu(kernels::EmbeddingBackwardArgs<T>{.tokens = a.rows(),
                                                                    .vocab = a.rows(),
                                                                    .width = kHidden,
                                                                    .ids = ids->ids.data(),
                                                                    .dy = a.Stream<T>(0),
                                                                    .dweight = a.Stream<T>(1),
                                                                    .order = ids->order.data(),
                                                                    .starts = ids->starts.data()},
                                  t);
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
  AddBothTypes(cases, "embedding_backward", 1, 1,
               [](auto type) { return EmbeddingBackward<decltype(type)>(); });
  return cases;
}

}  // namespace dtrain::bench
