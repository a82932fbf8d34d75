// The numerics contract: every ZeRO stage, with and without offload, trains each kind of model to
// the same bits in each precision, and any number of ranks trains as one does.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::engine_models_test {
namespace {

using testing::RankContext;

constexpr int64_t kRows = 12;  // In a step, over all ranks.
constexpr int64_t kTokens = 16;

// A model and its loss over rows of tokens [rows, kTokens + 1], in [0, 61).
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor LossSum(const at::Tensor& tokens) = 0;

 protected:
  at::Tensor Make(const std::string& name, at::IntArrayRef shape, double scale = 0.1) {
    return register_parameter(name, at::randn(shape) * scale);
  }
};

// Two layers of a decoder-only Transformer with a tied output.
class Gpt final : public Model {
 public:
  Gpt() {
    table_ = Make("embed_tokens", {61, kHidden});
    for (size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      const auto name = [i](const char* what) { return absl::StrCat("layers_", i, "_", what); };
      layer.first_norm = register_parameter(name("first_norm"), at::ones({kHidden}));
      layer.qkv = Make(name("qkv"), {3 * kHidden, kHidden});
      layer.out = Make(name("out"), {kHidden, kHidden});
      layer.second_norm = register_parameter(name("second_norm"), at::ones({kHidden}));
      layer.gate = Make(name("gate"), {kInner, kHidden});
      layer.up = Make(name("up"), {kInner, kHidden});
      layer.down = Make(name("down"), {kHidden, kInner});
    }
  }
  at::Tensor LossSum(const at::Tensor& tokens) override {
    at::Tensor h = at::embedding(table_, tokens.narrow(1, 0, kTokens));
    for (const Layer& layer : layers_) {
      const at::Tensor x = ops::RmsNorm(h, layer.first_norm, 1e-5);
      const auto heads = at::linear(x, layer.qkv)
                             .view({x.size(0), kTokens, 3, kHeads, kHidden / kHeads})
                             .permute({2, 0, 3, 1, 4});
      const at::Tensor mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {},
                                                                0.0, /*is_causal=*/true);
      h = h + at::linear(mixed.transpose(1, 2).reshape({x.size(0), kTokens, kHidden}), layer.out);
      const at::Tensor y = ops::RmsNorm(h, layer.second_norm, 1e-5);
      h = h +
          at::linear(ops::SwiGlu(at::linear(y, layer.gate), at::linear(y, layer.up)), layer.down);
    }
    return at::cross_entropy_loss(h.matmul(table_.t()).flatten(0, 1).to(at::kFloat),
                                  tokens.narrow(1, 1, kTokens).flatten(), {}, at::Reduction::Sum);
  }

 private:
  static constexpr int64_t kHidden = 48;
  static constexpr int64_t kInner = 72;
  static constexpr int64_t kHeads = 3;
  struct Layer {
    at::Tensor first_norm, qkv, out, second_norm, gate, up, down;
  };
  at::Tensor table_;
  std::array<Layer, 2> layers_;
};

// Sizes that no block, page or world size divides.
class OddMlp final : public Model {
 public:
  OddMlp() {
    first_ = Make("first", {101, kTokens + 1});
    first_bias_ = Make("first_bias", {101});
    second_ = Make("second", {67, 101});
    third_ = Make("third", {1, 67});
    scalar_ = Make("scalar", {}, 1);
    empty_ = register_parameter("empty", at::zeros({0, 5}));
  }
  at::Tensor LossSum(const at::Tensor& tokens) override {
    const at::Tensor x = (tokens.to(at::kFloat) / 61).to(first_.scalar_type());
    const at::Tensor h =
        at::gelu(at::linear(at::tanh(at::linear(x, first_, first_bias_)), second_));
    return (h.matmul(third_.t()) * scalar_ - 1).square().sum(at::kFloat) * kTokens;
  }

 private:
  at::Tensor first_, first_bias_, second_, third_, scalar_, empty_;
};

// One weight at both ends and registered twice, one that is never used, one that every second
// step uses, one that is frozen.
class Sharing final : public Model {
 public:
  Sharing() {
    unused_ = Make("unused", {50, 41});
    shared_ = Make("shared", {61, 40});
    at::Tensor frozen = Make("frozen", {40, 40}, 0.2);
    frozen.requires_grad_(false);
    frozen_ = frozen;
    late_ = Make("late", {40});
    sometimes_ = Make("sometimes", {40});
    register_parameter("head", shared_);
    counts_ = register_buffer("counts", at::zeros({40}));
  }
  at::Tensor LossSum(const at::Tensor& tokens) override {
    at::Tensor h = at::embedding(shared_, tokens.narrow(1, 0, kTokens)).matmul(frozen_);
    if (calls_++ % 2 == 0) {
      h = h * (1 + sometimes_);
    }
    h = at::tanh(h + late_);
    {
      const at::NoGradGuard no_grad;
      counts_ += 1;
    }
    return at::cross_entropy_loss(h.matmul(shared_.t()).flatten(0, 1).to(at::kFloat),
                                  tokens.narrow(1, 1, kTokens).flatten(), {}, at::Reduction::Sum);
  }

 private:
  at::Tensor unused_, shared_, frozen_, late_, sometimes_, counts_;
  int64_t calls_ = 0;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Model>()> make;
};

std::vector<Kind> Kinds() {
  return {{"gpt", [] { return std::make_unique<Gpt>(); }},
          {"odd-mlp", [] { return std::make_unique<OddMlp>(); }},
          {"sharing", [] { return std::make_unique<Sharing>(); }}};
}

struct Way {
  const char* name;
  std::vector<std::string> overrides;
  int accumulation = 1;
  // Ways that add in one order have the same bits; the first of an order is what others must equal.
  const char* order = "once";
  bool units = false;  // Named by hand.
};

// Two of the model's neighbours each.
std::vector<std::vector<std::string>> PairsOf(const Model& model) {
  std::vector<std::vector<std::string>> units;
  std::set<const void*> seen;  // A shared one counts once, by its first name.
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    if (units.empty() || units.back().size() == 2) {
      units.emplace_back();
    }
    units.back().push_back(item.key());
  }
  return units;
}

// Adds further combinations, on few ranks: bits depend on the number of ranks no more than above.
void AddWaysOfFewRanks(std::vector<Way>& ways) {
  const std::string zero = "zero_optimization.";
  const std::string stage = zero + "stage=";
  ways.push_back({"stage 1, offloaded", {stage + "1", zero + "offload_optimizer.device=cpu"}});
  ways.push_back(
      {"stage 3, weights and optimizer in a second host buffer",
       {stage + "3", zero + "offload_optimizer.device=cpu", zero + "offload_param.device=cpu"}});
  // Stages 0 and 1 add a rank's micro-batches first, stages 2 and 3 the ranks.
  for (const int number : {0, 1, 2, 3}) {
    ways.push_back({"two micro-batches",
                    {stage + std::to_string(number)},
                    2,
                    number < 2 ? "micro-batches first" : "ranks first"});
  }
}

std::vector<Way> Ways(int ranks) {
  const std::string zero = "zero_optimization.";
  const std::string stage = zero + "stage=";
  std::vector<Way> ways = {
      {"stage 0", {stage + "0"}},
      {"stage 1", {stage + "1"}},
      {"stage 2", {stage + "2"}},
      {"stage 3", {stage + "3"}},
      {"stage 3, everything shared out and nothing kept",
       {stage + "3", zero + "stage3_param_persistence_threshold=0",
        zero + "stage3_max_live_parameters=0", zero + "stage3_prefetch_bucket_size=0"}},
      {.name = "stage 3, units by hand",
       .overrides = {stage + "3", zero + "stage3_param_persistence_threshold=0"},
       .units = true},
      {"stage 2, offloaded", {stage + "2", zero + "offload_optimizer.device=cpu"}},
      {"stage 3, offloaded to files",
       {stage + "3", zero + "offload_optimizer.device=nvme",
        zero + "offload_optimizer.nvme_path=/tmp", zero + "offload_param.device=nvme",
        zero + "offload_param.nvme_path=/tmp"}}};
  if (ranks <= 2) {
    AddWaysOfFewRanks(ways);
  }
  return ways;
}

// Three ranks, which divide nothing, train in every precision as two do: every model has fp32, and
// one 2-byte type, or both in `./dev test long`. Four have fp32.
std::vector<std::string> Precisions(int ranks, absl::string_view model) {
  static const bool all = std::getenv("DTRAIN_TEST_LONG") != nullptr;
  if (ranks == 4) {
    return {"fp32"};
  }
  if (ranks == 3 && !all) {
    return {"fp32", model == "odd-mlp" ? "fp16" : "bf16"};
  }
  return {"fp32", "bf16", "fp16"};
}

at::Tensor Rows(int64_t step, int64_t begin, int64_t end) {
  const at::Tensor places = at::arange(begin * (kTokens + 1), end * (kTokens + 1), at::kLong);
  return ((places * 37 + step * 101) * (places + 11)).remainder(61).view({-1, kTokens + 1});
}

// Losses and norms of four steps, then sums that weigh every element of every weight.
absl::StatusOr<std::vector<double>> Train(RankContext& context, const Kind& kind,
                                          const std::string& precision, const Way& way,
                                          const std::string& group) {
  const testing::TempFolder folder;
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "deterministic=true",
      "optimizer.params.lr=0.01",
      "zero_optimization.reduce_bucket_size=4096",
      "fp16.initial_scale_power=8"};
  if (precision != "fp32") {
    overrides.push_back(precision + ".enabled=true");
  }
  overrides.insert(overrides.end(), way.overrides.begin(), way.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob(
          {.run_dir = folder.path(), .overrides = overrides, .rank = &context, .group = group}));
  at::manual_seed(static_cast<uint64_t>(11 + context.rank));  // Weights come from rank 0.
  const std::unique_ptr<Model> model = kind.make();
  EngineOptions options;
  if (way.units) {
    options.units = PairsOf(*model);
  }
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, *model, options));
  struct Source {  // A rank's rows are the same however many micro-batches they come in.
    int64_t rank, accumulation, share;
    int64_t calls = 0;
    absl::StatusOr<at::Tensor> Next() {
      const int64_t place = rank * accumulation + calls % accumulation;
      const int64_t step = 1 + calls++ / accumulation;
      return Rows(step, place * share, (place + 1) * share);
    }
  } source{context.rank, way.accumulation, kRows / (context.size * way.accumulation)};
  std::vector<double> numbers;
  for (int i = 0; i < 4; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](const at::Tensor& tokens) {
      return Loss(model->LossSum(tokens), tokens.size(0) * kTokens);
    }));
    if (report.skipped) {
      return absl::InternalError("a step was skipped");
    }
    numbers.insert(numbers.end(), {report.loss, report.grad_norm});
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor wide = parameter.to(at::kDouble).flatten();
      const at::Tensor weights = at::arange(wide.numel(), at::kDouble).remainder(97) + 1;
      numbers.push_back((wide * weights).sum().item<double>());
    }
  }));
  return numbers;
}

// How far losses and norms may be apart, in units of themselves. fp32's sums come in another order.
// In 2 bytes each rank and micro-batch rounds its own gradient, so a weight may be rounded to the
// neighbour of what it is elsewhere: a few units of the last place of the type.
double ToleranceOf(absl::string_view precision) {
  return precision == "fp32" ? 5e-5 : precision == "bf16" ? 0x1p-7 : 0x1p-9;
}

// The losses and norms alone: a sum over a weight's elements cancels.
bool LossesAreNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  for (size_t i = 0; i < 8; ++i) {
    if (std::abs(a[i] - b[i]) > tolerance * std::abs(b[i])) {
      return false;
    }
  }
  return true;
}

// All models, precisions and ways on this rank, which must agree; the numbers of stage 0, by model
// and precision.
absl::Status TrainAll(RankContext& context, Json& plain) {
  at::set_num_threads(1);
  std::vector<std::string> wrong;
  int trainings = 0;
  for (const Kind& kind : Kinds()) {
    for (const std::string& precision : Precisions(context.size, kind.name)) {
      const std::string name = absl::StrCat(kind.name, " in ", precision);
      std::map<std::string, std::vector<double>> by_order;
      for (const Way& way : Ways(context.size)) {
        const std::string what = absl::StrCat(name, ", ", way.name, ", ", way.overrides.front());
        auto numbers = Train(context, kind, precision, way, absl::StrCat("way-", ++trainings));
        DT_RETURN_IF_ERROR(Annotate(numbers.status(), what));
        const std::vector<double>& expected = by_order.emplace(way.order, *numbers).first->second;
        if (*numbers != expected) {
          wrong.push_back(absl::StrCat(what, ": ", absl::StrJoin(*numbers, " "), " and not ",
                                       absl::StrJoin(expected, " ")));
        }
        // The shared model's use of a weight depends on how often it is called.
        if (kind.name != absl::string_view("sharing") &&
            !LossesAreNear(*numbers, by_order["once"], ToleranceOf(precision))) {
          wrong.push_back(absl::StrCat(what, ": losses far from those of one micro-batch"));
        }
      }
      plain[name] = by_order["once"];
    }
  }
  return wrong.empty() ? absl::OkStatus() : absl::InternalError(absl::StrJoin(wrong, "\n"));
}

// The numbers of rank 0, after a check that every rank has the same.
Json NumbersOf(int size) {
  auto cluster = testing::Cluster::Start(
      {.size = size, .time_bound = absl::Seconds(280)}, [](RankContext& context) -> absl::Status {
        Json plain = Json::object();
        DT_RETURN_IF_ERROR(TrainAll(context, plain));
        return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(plain),
                                  Deadline::After(absl::Seconds(10)));
      });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) {
    texts.push_back((*cluster)->Result(absl::StrCat("numbers/", rank)).value_or("{}"));
    EXPECT_EQ(texts.back(), texts.front()) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return ParseJson(texts.front(), "numbers").value_or(Json::object());
}

class EngineModelsTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, EngineModelsTest, ::testing::Values(2, 3, 4));

TEST_P(EngineModelsTest, EveryStageHasTheSameBitsAndManyRanksTrainAsOneDoes) {
  static const auto* const one = new Json(NumbersOf(1));
  const Json many = NumbersOf(GetParam());
  size_t trained = 0;
  for (const Kind& kind : Kinds()) {
    trained += Precisions(GetParam(), kind.name).size();
  }
  ASSERT_EQ(many.size(), trained) << "models, each in its precisions";
  for (const auto& [name, numbers] : many.items()) {
    const auto seen = numbers.get<std::vector<double>>();
    const auto expected = one->value(name, std::vector<double>());
    ASSERT_EQ(seen.size(), expected.size()) << name;
    ASSERT_GT(seen.size(), 8U) << name;
    EXPECT_TRUE(LossesAreNear(seen, expected, ToleranceOf(name.substr(name.rfind(' ') + 1))))
        << name << ": " << absl::StrJoin(seen, " ") << " and not " << absl::StrJoin(expected, " ");
  }
}

}  // namespace
}  // namespace dtrain::engine_models_test
