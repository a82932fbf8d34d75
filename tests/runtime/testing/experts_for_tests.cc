#include "tests/runtime/testing/experts_for_tests.h"

#include <cmath>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/recompute.h"

namespace dtrain::testing {
namespace {

constexpr int64_t kExpertWidth = 64;
constexpr int64_t kExperts = 4;
constexpr int64_t kRows = 4;  // In a micro-batch of a rank.
constexpr int kSteps = 4;
constexpr double kRate = 0.02;

// 16,448 elements: no border between two is one of buckets.
struct Expert : torch::nn::Module {
  Expert() {
    up = register_parameter("up", at::randn({kExpertWidth, 2 * kExpertWidth}) * 0.1);
    down = register_parameter("down", at::randn({2 * kExpertWidth, kExpertWidth}) * 0.1);
    bias = register_parameter("bias", at::randn({kExpertWidth}) * 0.1);
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(x.matmul(up)).matmul(down) + bias; }
  at::Tensor up, down, bias;
};

struct Experts : torch::nn::Module {
  Experts() {
    for (int64_t i = 0; i < kExperts; ++i) {
      all.push_back(register_module(std::to_string(i), std::make_shared<Expert>()));
    }
  }
  std::vector<std::shared_ptr<Expert>> all;
};

// The micro-batch of a rank.
at::Tensor BatchOf(const ExpertsWay& way, int64_t step, int64_t micro, int64_t rank) {
  const int64_t place = (step * way.accumulation + micro) * way.size + rank;
  const at::Tensor values =
      at::sin(at::arange(kRows * kExpertWidth, at::kFloat).view({kRows, kExpertWidth}) * 0.37 +
              static_cast<double>(place));
  at::Tensor choices = at::empty({kRows, 2});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t mixture = 0; mixture < 2; ++mixture) {
      choices[row][mixture] = way.router(step, micro, rank, row, mixture);
    }
  }
  return at::cat({values, choices}, 1);
}

// The whole global batch of a step.
at::Tensor GlobalBatch(const ExpertsWay& way, int64_t step) {
  std::vector<at::Tensor> parts;
  for (int64_t micro = 0; micro < way.accumulation; ++micro) {
    for (int64_t rank = 0; rank < way.size; ++rank) {
      parts.push_back(BatchOf(way, step, micro, rank));
    }
  }
  return at::cat(parts);
}

}  // namespace

class Mixture : public torch::nn::Module {
 public:
  Mixture() {
    gate = register_parameter("gate", at::randn({kExpertWidth, 1}) * 0.1);
    experts = register_module("experts", std::make_shared<Experts>());
  }
  // `choice` [rows]: the expert of each row.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& choice) {
    const at::Tensor weight = at::sigmoid(x.matmul(gate));
    at::Tensor out = x * weight;
    for (int64_t i = 0; i < kExperts; ++i) {
      const at::Tensor rows = at::nonzero(choice == i).view({-1});
      if (rows.numel() > 0) {
        const at::Tensor part =
            experts->all[static_cast<size_t>(i)]->forward(x.index_select(0, rows));
        out = out.index_add(0, rows, part * weight.index_select(0, rows));
      }
    }
    return out;
  }
  at::Tensor gate;
  std::shared_ptr<Experts> experts;
};

ExpertsModel::ExpertsModel(ExpertsWay::Shape shape) : shape_(shape) {
  using Shape = ExpertsWay::Shape;
  const auto square = [] { return at::randn({kExpertWidth, kExpertWidth}) * 0.1; };
  in_ = register_parameter("in", square());
  first_ = register_module("first", std::make_shared<Mixture>());
  middle_ = register_parameter("middle", at::randn({kExpertWidth, 3 * kExpertWidth}) * 0.1);
  second_ = shape == Shape::kTied ? first_ : std::make_shared<Mixture>();
  register_module("second", second_);
  out_ = register_parameter("out", square());
  for (auto& parameter : named_parameters()) {
    const bool of_expert = parameter.key().find("experts") != std::string::npos;
    if ((shape == Shape::kFrozenExperts && of_expert) ||
        (shape == Shape::kFrozenRest && !of_expert)) {
      parameter.value().set_requires_grad(false);
    }
  }
}

at::Tensor ExpertsModel::Loss(const at::Tensor& batch) {
  const at::Tensor x = batch.narrow(1, 0, kExpertWidth).to(middle_.scalar_type());
  const auto choice = [&](int64_t mixture) {
    return batch.select(1, kExpertWidth + mixture).to(at::kLong);
  };
  if (shape_ == ExpertsWay::Shape::kMixtureAtBothEnds) {
    return Second(First(x, choice(0)), choice(1)).square().sum();
  }
  at::Tensor h = at::tanh(x.matmul(in_));
  if (shape_ == ExpertsWay::Shape::kRecomputed) {
    h = Recompute([this, to = choice(0)](const at::Tensor& y) { return First(y, to); }, h);
    h = Recompute([this, to = choice(1)](const at::Tensor& y) { return Second(y, to); }, h);
  } else {
    h = Second(First(h, choice(0)), choice(1));
  }
  return at::tanh(h.matmul(out_)).square().sum();
}

at::Tensor ExpertsModel::First(const at::Tensor& h, const at::Tensor& choice) {
  const at::Tensor mixed = h + first_->forward(h, choice);
  return at::tanh(mixed.matmul(middle_).narrow(1, 0, kExpertWidth));
}
at::Tensor ExpertsModel::Second(const at::Tensor& h, const at::Tensor& choice) {
  return h + second_->forward(h, choice);
}

int64_t AnotherOnEachRank(int64_t step, int64_t micro, int64_t rank, int64_t /*row*/,
                          int64_t mixture) {
  return (rank * (1 + step % 3) + micro + step + mixture) % kExperts;
}
int64_t MoreOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture) {
  return rank == step % 2 ? (row + micro + mixture) % kExperts : (rank + step) % kExperts;
}
int64_t NoneOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture) {
  const bool none = step > 0 && (rank + step + (step == 2 ? 0 : mixture)) % 2 == 0;
  return none ? kNoExpert : AnotherOnEachRank(step, micro, rank, row, mixture);
}

absl::StatusOr<at::Tensor> ExpertsSource::Next() {
  const int64_t now = call++;
  return BatchOf(way, now / way.accumulation, now % way.accumulation, rank);
}

std::vector<std::string> ExpertsOverrides(const ExpertsWay& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      "optimizer.type=SGD",
      absl::StrCat("optimizer.params.lr=", kRate),
      "optimizer.params.weight_decay=0",
      "gradient_clipping=0",
      "eval_batches=2",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.reduce_bucket_size=5000",
      "zero_optimization.stage3_param_persistence_threshold=0"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return overrides;
}

ExpertsOutcome ExpectedOfExperts(const ExpertsWay& way) {
  at::manual_seed(5);
  using Shape = ExpertsWay::Shape;
  ExpertsModel model(way.shape == Shape::kRecomputed ? Shape::kPlain : way.shape);
  ExpertsOutcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor batch = GlobalBatch(way, step);
    const at::Tensor loss = model.Loss(batch) / static_cast<double>(batch.size(0));
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad(), kRate);
        parameter.mutable_grad().reset();
      }
    }
    if (step == 1) {
      const at::Tensor seen = at::cat({GlobalBatch(way, 0), GlobalBatch(way, 1)});
      outcome.losses.push_back(model.Loss(seen).item<double>() / static_cast<double>(seen.size(0)));
    }
  }
  outcome.weights = model.parameters();
  return outcome;
}

absl::StatusOr<ExpertsOutcome> TrainExperts(Job& job, const ExpertsWay& way) {
  at::manual_seed(static_cast<uint64_t>(5 + job.rank()));  // Weights come from rank 0.
  ExpertsModel model(way.shape);
  EngineOptions options;
  options.units = way.units;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(job, model, options));
  ExpertsSource source{way, job.rank()};
  ExpertsSource validation{way, job.rank()};
  const auto loss = [&](const at::Tensor& batch) { return Loss(model.Loss(batch), batch.size(0)); };
  ExpertsOutcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
    outcome.losses.push_back(report.loss);
    if (step == 1) {
      DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
      outcome.losses.push_back(evaluated);
    }
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& parameter : model.parameters()) {
      outcome.weights.push_back(parameter.detach().to(at::kFloat).clone());
    }
  }));
  return outcome;
}

absl::Status CompareExperts(const ExpertsOutcome& is, const ExpertsOutcome& expected,
                            double tolerance) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (!(std::abs(is.losses[i] - expected.losses[i]) <=
          tolerance * std::abs(expected.losses[i]))) {
      return absl::InternalError(absl::StrCat("losses are ", absl::StrJoin(is.losses, " "),
                                              "; expected ", absl::StrJoin(expected.losses, " ")));
    }
  }
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    const double off = (is.weights[i] - expected.weights[i]).abs().max().item<double>();
    if (!(off <= tolerance * 0.1)) {
      return absl::InternalError(absl::StrFormat("weight %d is off by %g", i, off));
    }
  }
  return absl::OkStatus();
}

std::string Described(const ExpertsWay& way) {
  return absl::StrCat(way.size, " ranks, stage ", way.stage, ", ", way.accumulation,
                      " micro-batches, shape ", static_cast<int>(way.shape), ", ", way.units.size(),
                      " units, ", absl::StrJoin(way.more, ", "));
}

}  // namespace dtrain::testing
