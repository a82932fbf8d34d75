// Low-rank adapters on a model of dtrain::Linear layers, beside a plain LibTorch loop, and their
// files.
#include "dtrain/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/linear.h"
#include "dtrain/model_files.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"
#include "torch/nn/modules/linear.h"

namespace dtrain::lora_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NumbersOf;
using testing::RankContext;

constexpr int64_t kRows = 8;
constexpr int kSteps = 5;
constexpr double kRate = 0.2;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    up = register_module("up", Linear(6, 8));
    down = register_module("down", Linear(8, 4, /*with_bias=*/false));
    lm_head = register_module("lm_head", Linear(4, 3));
  }
  at::Tensor Loss(const at::Tensor& x) {
    return lm_head->forward(down->forward(at::tanh(up->forward(x)))).square().sum();
  }
  Linear up{nullptr}, down{nullptr}, lm_head{nullptr};
};
TORCH_MODULE(Mlp);

at::Tensor Rows(int64_t step, int64_t first, int64_t rows) {
  return at::sin(at::arange(first * 6, (first + rows) * 6, at::kFloat) * 1.3 + step).view({-1, 6});
}

const LoraOptions& Options() {
  static const LoraOptions options{.rank = 2, .alpha = 6, .target_modules = {"up", "down"}};
  return options;
}

// The model as both trainings begin with it.
absl::StatusOr<Mlp> MakeModel() {
  at::manual_seed(3);
  Mlp model;
  DT_RETURN_IF_ERROR(AddLora(*model, Options()).status());
  const at::NoGradGuard no_grad;
  for (Linear& layer : std::vector<Linear>{model->up, model->down}) {  // Else A has no gradient.
    layer->named_parameters()["lora_B.weight"].uniform_(-0.3, 0.3);
  }
  return model;
}

void Append(const at::Tensor& tensor, std::vector<double>& numbers) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view({-1});
  numbers.insert(numbers.end(), flat.const_data_ptr<double>(),
                 flat.const_data_ptr<double>() + flat.numel());
}

// Trains A and B by operations of LibTorch, and gives all weights, then the merged ones.
std::vector<double> PlainLoop() {
  Mlp model = *MakeModel();
  std::vector<at::Tensor> adapters;
  const auto parameter = [&](const char* name) { return model->named_parameters()[name]; };
  for (const char* const name :
       {"up.lora_A.weight", "up.lora_B.weight", "down.lora_A.weight", "down.lora_B.weight"}) {
    adapters.push_back(parameter(name).detach().clone().requires_grad_(true));
  }
  constexpr double kScale = 6.0 / 2;
  const auto merged = [&](const char* name, size_t first) {
    return parameter(name) + kScale * adapters[first + 1].matmul(adapters[first]);
  };
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = Rows(step, 0, kRows);
    const at::Tensor h = at::tanh(x.matmul(merged("up.weight", 0).t()) + parameter("up.bias"));
    const at::Tensor y = h.matmul(merged("down.weight", 2).t());
    const at::Tensor loss =
        (y.matmul(parameter("lm_head.weight").t()) + parameter("lm_head.bias")).square().sum();
    (loss / kRows).backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& adapter : adapters) {
      adapter.sub_(adapter.grad() * kRate);
      adapter.mutable_grad().reset();
    }
  }
  std::vector<double> numbers;
  for (const at::Tensor& adapter : adapters) {
    Append(adapter, numbers);
  }
  Append(merged("up.weight", 0), numbers);
  Append(merged("down.weight", 2), numbers);
  Append(parameter("lm_head.weight"), numbers);
  return numbers;
}

struct Rank {
  int rank = 0;
  int size = 1;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() { return Rows(call++, rank * kRows / size, kRows / size); }
};

absl::Status TrainAndExport(Job& job, const std::string& out) {
  DT_ASSIGN_OR_RETURN(Mlp model, MakeModel());
  EngineOptions options;
  options.public_name = PeftName;
  options.store_frozen = false;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(job, *model, options));
  Rank source{.rank = job.rank(), .size = job.world_size()};
  for (int step = 0; step < kSteps; ++step) {
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& x) { return Loss(model->Loss(x), x.size(0)); })
            .status());
  }
  DT_RETURN_IF_ERROR(ExportModel(job, *engine, out + "/adapter"));
  return ExportMerged(job, *engine, *model, {{"config.json", "{}"}}, out + "/merged");
}

absl::Status AppendFile(const ModelFiles& files, const std::string& name,
                        std::vector<double>& numbers) {
  DT_ASSIGN_OR_RETURN(const ModelTensor about, files.Describe(name));
  const at::Tensor values = at::empty(about.shape, at::TensorOptions(at::kFloat));
  DT_RETURN_IF_ERROR(files.Read(name, values));
  Append(values, numbers);
  return absl::OkStatus();
}

std::vector<double> WithEngine(int size, int stage) {
  const testing::TempFolder out;
  return NumbersOf(size, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(
        auto job,
        testing::MakeTestJob(
            {.run_dir = folder.path(),
             .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_clipping=0",
                           absl::StrCat("zero_optimization.stage=", stage),
                           "zero_optimization.stage3_param_persistence_threshold=0",
                           absl::StrCat(R"(optimizer={"type":"SGD","params":{"lr":)", kRate, "}}")},
             .rank = &context}));
    DT_RETURN_IF_ERROR(TrainAndExport(*job, out.path()));
    if (context.rank != 0) {
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const auto adapter, ModelFiles::Open(out.path() + "/adapter"));
    for (const char* const name :
         {"up.lora_A.weight", "up.lora_B.weight", "down.lora_A.weight", "down.lora_B.weight"}) {
      DT_RETURN_IF_ERROR(AppendFile(*adapter, PeftName(name), numbers));
    }
    if (adapter->names().size() != 4) {
      return absl::InternalError("the adapter's files hold more");
    }
    DT_ASSIGN_OR_RETURN(const auto merged, ModelFiles::Open(out.path() + "/merged"));
    for (const char* const name : {"up.weight", "down.weight", "lm_head.weight"}) {
      DT_RETURN_IF_ERROR(AppendFile(*merged, name, numbers));
    }
    return absl::OkStatus();
  });
}

TEST(LoraTest, AdaptersTrainAsInAPlainLoopAndAreMergedIntoTheirWeights) {
  at::set_num_threads(1);
  const std::vector<double> plain = PlainLoop();
  for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {2, 3}}) {
    const std::vector<double> numbers = WithEngine(size, stage);
    ASSERT_EQ(numbers.size(), plain.size()) << size << " ranks, stage " << stage;
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(numbers[i], plain[i], 1e-5) << i << ", " << size << " ranks, stage " << stage;
    }
  }
}

TEST(LoraTest, PatternsChooseLayersAndAllElseIsFrozen) {
  Mlp all;
  EXPECT_THAT(*AddLora(*all, {.rank = 2}), ElementsAre("up", "down"));
  for (const auto& item : all->named_parameters()) {
    EXPECT_EQ(item.value().requires_grad(), absl::StrContains(item.key(), "lora_")) << item.key();
  }
  EXPECT_TRUE(at::equal(all->up->LowRankWeight(), at::zeros({8, 6}))) << "B begins as zeros";
  EXPECT_FALSE(all->lm_head->has_low_rank());
  Mlp one;
  EXPECT_THAT(*AddLora(*one, {.rank = 2, .target_modules = {"*_head"}}), ElementsAre("lm_head"));
}

TEST(LoraTest, MistakesAreNamedBeforeTheModelChanges) {
  const auto said = [](const LoraOptions& options, const std::string& where = "") {
    Mlp model;
    const auto added = AddLora(*model, options, where);
    EXPECT_TRUE(absl::IsInvalidArgument(added.status())) << added.status();
    EXPECT_TRUE(model->up->weight.requires_grad());
    return std::string(added.status().message());
  };
  EXPECT_THAT(said({.rank = 2, .target_modules = {"upp"}}),
              AllOf(HasSubstr("LoraOptions::target_modules \"upp\" names no projection"),
                    HasSubstr("nearest: up")));
  EXPECT_THAT(said({.rank = 5}, "tune"),
              HasSubstr("tune.r 5 is above the smaller side of down; allowed: 1 to 4"));
  EXPECT_THAT(said({.rank = 2, .target_modules = {}}),
              HasSubstr("LoraOptions::target_modules is empty"));
  EXPECT_THAT(said({.rank = 0}), HasSubstr("LoraOptions::rank is 0; allowed: 1 or more"));
  EXPECT_THAT(said({.dropout = 1.0}), HasSubstr("LoraOptions::dropout is 1"));
  torch::nn::Linear plain(3, 3);
  EXPECT_THAT(std::string(AddLora(*plain, {}).status().message()),
              HasSubstr("use dtrain::Linear (dtrain/linear.h)"));
  Mlp twice;
  ASSERT_TRUE(AddLora(*twice, {.rank = 2}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AddLora(*twice, {.rank = 2}).status()));
}

TEST(LoraTest, TheConfigurationIsPefts) {
  const auto json = ParseJson(
      AdapterConfig({.rank = 4, .alpha = 8, .rank_stabilised = true, .target_modules = {"*up"}},
                    {"a.up", "b.up"}, "base/model", /*transposed=*/true),
      "adapter_config.json");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["r"], 4);
  EXPECT_EQ((*json)["use_rslora"], true);
  EXPECT_EQ((*json)["fan_in_fan_out"], true);
  EXPECT_EQ((*json)["base_model_name_or_path"], "base/model");
  EXPECT_EQ((*json)["target_modules"], Json({"a.up", "b.up"})) << "PEFT knows no stars";
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 8}.scale()), 2);
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 8, .rank_stabilised = true}.scale()), 4);
}

TEST(LinearTest, IsTorchsLinear) {
  for (const bool with_bias : {true, false}) {
    at::manual_seed(9);
    Linear mine(7, 5, with_bias);
    at::manual_seed(9);
    torch::nn::Linear torchs(torch::nn::LinearOptions(7, 5).bias(with_bias));
    EXPECT_TRUE(at::allclose(mine->weight, torchs->weight, /*rtol=*/1e-6));
    EXPECT_EQ(mine->parameters().size(), torchs->parameters().size());
    const at::Tensor x = at::randn({2, 3, 7});
    EXPECT_TRUE(at::allclose(mine->forward(x), torchs->forward(x), /*rtol=*/1e-5, /*atol=*/1e-6));
  }
}

}  // namespace
}  // namespace dtrain::lora_test
