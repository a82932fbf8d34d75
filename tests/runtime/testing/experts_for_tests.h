// Mixtures of experts of which each rank's data uses others, what a training of them ends with on
// ranks, and what it should: that of a plain LibTorch loop over the whole global batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// The expert of a mixture, 0 or 1, that a row takes.
using Router =
    std::function<int64_t(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture)>;
constexpr int64_t kNoExpert = -1;

// Each rank another one, in another order from step to step.
int64_t AnotherOnEachRank(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture);
// One rank uses all, the others one.
int64_t MoreOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture);
// From the second step on a rank uses none at all, of a mixture or of both.
int64_t NoneOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture);

struct ExpertsWay {
  enum class Shape { kPlain, kTied, kRecomputed, kFrozenExperts, kFrozenRest, kMixtureAtBothEnds };
  int size = 2;
  int stage = 3;
  int accumulation = 1;
  Shape shape = Shape::kPlain;
  Router router = AnotherOnEachRank;
  std::vector<std::vector<std::string>> units = {};  // EngineOptions::units.
  std::vector<std::string> more = {};                // Overrides.
};

class Mixture;

// Mixtures "first" and "second", each of "gate" and "experts", between "in", "middle" and "out".
class ExpertsModel : public torch::nn::Module {
 public:
  explicit ExpertsModel(ExpertsWay::Shape shape);
  // The sum over rows; each is its values, and the experts of both mixtures.
  at::Tensor Loss(const at::Tensor& batch);

 private:
  at::Tensor First(const at::Tensor& h, const at::Tensor& choice);
  at::Tensor Second(const at::Tensor& h, const at::Tensor& choice);

  const ExpertsWay::Shape shape_;
  at::Tensor in_, middle_, out_;
  std::shared_ptr<Mixture> first_, second_;
};

// The micro-batches of a rank.
struct ExpertsSource {
  const ExpertsWay& way;
  int64_t rank = 0;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next();
  void Restart() { call = 0; }
};

struct ExpertsOutcome {
  std::vector<double> losses;  // Four steps', and that of an evaluation after the second.
  std::vector<at::Tensor> weights;
};

// The overrides that a job of MakeTestJob needs for it.
std::vector<std::string> ExpertsOverrides(const ExpertsWay& way);
absl::StatusOr<ExpertsOutcome> TrainExperts(Job& job, const ExpertsWay& way);
// Gradient descent in one process.
ExpertsOutcome ExpectedOfExperts(const ExpertsWay& way);
// Losses may be off by a part of `tolerance`, weights by a tenth of it: sums of other orders in
// fp32 over some thousand additions.
absl::Status CompareExperts(const ExpertsOutcome& is, const ExpertsOutcome& expected,
                            double tolerance);
std::string Described(const ExpertsWay& way);

}  // namespace dtrain::testing
