// The module's buffers on several ranks: one set after each step, by the rule of `module_buffers`,
// in evaluations, in checkpoints and after a resume.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"

namespace dtrain::engine_module_buffers_test {
namespace {

using testing::RankContext;

constexpr int64_t kWidth = 6;
constexpr int64_t kRows = 8;  // Rows in a micro-batch.

// Normalises by the batch's statistics and keeps running ones, as BatchNorm does, with operations
// that any type of buffer goes with.
class Normed : public torch::nn::Module {
 public:
  Normed() {
    weight = register_parameter("weight", at::eye(kWidth) + 0.1);
    mean = register_buffer("mean", at::zeros({kWidth}));
    variance = register_buffer("variance", at::ones({kWidth}, at::kDouble));
    batches = register_buffer("batches", at::zeros({}, at::kLong));
    rows = register_buffer("rows", at::zeros({}));
    seen = register_buffer("seen", at::zeros({2}, at::kBool));
    table = register_buffer("table", at::arange(0, 3, at::kFloat));
    nothing = register_buffer("nothing", at::zeros({0, 3}));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = x.to(weight.scalar_type()).matmul(weight);
    at::Tensor m = mean.to(h.scalar_type());
    at::Tensor v = variance.to(h.scalar_type());
    if (is_training()) {
      m = h.mean(0);
      v = (h - m).square().mean(0);
      const at::NoGradGuard no_grad;
      mean.lerp_(m.to(mean.scalar_type()), 0.1);
      variance.lerp_(v.to(at::kDouble), 0.1);
      batches += 1;
      rows += x.size(0);
      seen.fill_(true);
    }
    return ((h - m) / (v + 0.1).sqrt() - 0.3).square().mul(x.to(h.scalar_type())).sum(at::kFloat);
  }
  at::Tensor weight, mean, variance, batches, rows, seen, table, nothing;
};

// Rows of rank `rank` of a step, all different.
at::Tensor Rows(int64_t step, int64_t place) {
  return at::sin(at::arange(0, kRows * kWidth, at::kFloat).view({kRows, kWidth}) *
                     (0.3 + 0.1 * static_cast<double>(place)) +
                 static_cast<double>(step)) *
         (1 + static_cast<double>(place));
}

struct Source {
  int64_t rank, size, accumulation;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const int64_t micro = call % accumulation;
    return Rows(call++ / accumulation, micro * size + rank);
  }
  void Restart() { call = 0; }
};

struct Way {
  std::string policy = "broadcast";
  int stage = 0;
  int accumulation = 1;
  bool own_loop = false;
  int64_t bad_step = -1;  // Its loss is infinite on the last rank.
  std::vector<std::string> more = {};
  int64_t until = 4;
};

void Append(const std::vector<at::Tensor>& tensors, std::vector<double>& numbers) {
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor wide = tensor.detach().to(at::kDouble).contiguous().view({-1});
    numbers.insert(numbers.end(), wide.const_data_ptr<double>(),
                   wide.const_data_ptr<double>() + wide.numel());
  }
}

std::vector<at::Tensor> BuffersOf(const Normed& model) {
  return {model.mean, model.variance, model.batches, model.rows, model.seen, model.table};
}

// Adds to `numbers` the loss, an evaluation and the rank's buffers after each step, and the weight
// at the end.
absl::Status Train(RankContext& context, const Way& way, const std::string& folder,
                   std::vector<double>& numbers) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "deterministic=true",
      "eval_batches=2",
      "gradient_clipping=0",
      R"(optimizer={"type":"SGD","params":{"lr":0.1}})",
      absl::StrCat("zero_optimization.stage=", way.stage),
      absl::StrCat("module_buffers=", way.policy)};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob(
                                    {.run_dir = folder, .overrides = overrides, .rank = &context}));
  Normed model;
  model.mean.fill_(context.rank);  // Create takes rank 0's.
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Source source{context.rank, context.size, way.accumulation, engine->step() * way.accumulation};
  Source validation{context.rank, context.size, way.accumulation};
  const auto loss = [&](const at::Tensor& x) {
    const bool bad =
        model.is_training() && engine->step() == way.bad_step && context.rank == context.size - 1;
    const at::Tensor sum = model.Loss(x);
    return Loss(bad ? sum * std::numeric_limits<double>::infinity() : sum, kRows);
  };
  while (engine->step() < way.until) {
    absl::StatusOr<StepReport> report;
    if (way.own_loop) {
      for (int micro = 0; micro < way.accumulation; ++micro) {
        DT_RETURN_IF_ERROR(engine->Backward(loss(*source.Next()),
                                            {.last_micro_batch = micro + 1 == way.accumulation}));
      }
      report = engine->Update();
    } else {
      report = engine->Step(source, loss);
    }
    DT_RETURN_IF_ERROR(report.status());
    numbers.push_back(report->skipped ? -1 : static_cast<double>(report->loss));
    DT_ASSIGN_OR_RETURN(numbers.emplace_back(), engine->Evaluate(validation, loss));
    Append(BuffersOf(model), numbers);
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] { Append({model.weight}, numbers); }));
  return checkpoints->Finish();
}

// The numbers of each rank.
std::vector<std::vector<double>> NumbersOf(int size, const Way& way, const std::string& folder) {
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(Train(context, way, folder, numbers));
    return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("numbers/", rank));
    all.push_back(ParseJson(text.value_or("[]"), "numbers")->get<std::vector<double>>());
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all;
}

std::vector<std::vector<double>> NumbersOf(int size, const Way& way) {
  const testing::TempFolder folder;
  return NumbersOf(size, way, folder.path());
}

// The same by a plain loop over the ranks' batches, which takes buffers as the policy says.
std::vector<std::vector<double>> Plain(int size, const Way& way) {
  std::vector<Normed> ranks(static_cast<size_t>(size));
  std::vector<std::vector<double>> numbers(ranks.size());
  const auto count = static_cast<double>(kRows * way.accumulation * size);
  for (int64_t step = 0; step < way.until; ++step) {
    double loss = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (int64_t micro = 0; micro < way.accumulation; ++micro) {
        const auto place = micro * size + static_cast<int64_t>(rank);
        const at::Tensor sum = ranks[rank].Loss(Rows(step, place));
        sum.backward();
        loss += sum.item<double>();
      }
    }
    const at::NoGradGuard no_grad;
    at::Tensor gradient = at::zeros_like(ranks[0].weight);
    for (Normed& rank : ranks) {
      gradient += rank.weight.grad();
    }
    for (size_t i = 0; way.policy != "local" && i < BuffersOf(ranks[0]).size(); ++i) {
      at::Tensor one = BuffersOf(ranks[0])[i].clone();
      if (way.policy == "average" && one.is_floating_point()) {
        one.zero_();
        for (Normed& rank : ranks) {
          one += BuffersOf(rank)[i] / size;
        }
      }
      for (Normed& rank : ranks) {
        BuffersOf(rank)[i].copy_(one);
      }
    }
    double evaluated = 0;
    for (Normed& rank : ranks) {
      rank.weight -= gradient * (0.1 / count);
      rank.weight.mutable_grad().reset();
    }
    ranks[0].eval();
    for (int64_t i = 0; i < 2 * way.accumulation * size; ++i) {
      const int64_t batches = way.accumulation * size;
      evaluated += ranks[0].Loss(Rows(i / batches, i % batches)).item<double>();
    }
    ranks[0].train();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      numbers[rank].push_back(loss / count);
      numbers[rank].push_back(evaluated / (2 * count));
      Append(BuffersOf(ranks[rank]), numbers[rank]);
      if (step + 1 == way.until) {
        Append({ranks[rank].weight}, numbers[rank]);
      }
    }
  }
  return numbers;
}

void ExpectNear(const std::vector<std::vector<double>>& numbers,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(numbers[rank].size(), expected[rank].size());
    for (size_t i = 0; i < expected[rank].size(); ++i) {
      EXPECT_NEAR(numbers[rank][i], expected[rank][i], 2e-5 * (1 + std::abs(expected[rank][i])))
          << "rank " << rank << ", " << i;
    }
  }
}

class ModuleBuffersTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Policies, ModuleBuffersTest,
                         ::testing::Values("broadcast", "average", "local"));

TEST_P(ModuleBuffersTest, FollowTheRuleAsAPlainLoopDoes) {
  for (const int accumulation : {1, 2}) {
    const Way way{.policy = GetParam(), .accumulation = accumulation};
    const auto expected = Plain(2, way);
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool own_loop :
           stage == 0 ? std::vector<bool>{false, true} : std::vector<bool>{false}) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", accumulation, " micro-batches"));
        Way engine = way;
        engine.stage = stage;
        engine.own_loop = own_loop;
        const auto numbers = NumbersOf(2, engine);
        ExpectNear(numbers, expected);
        EXPECT_EQ(numbers[0] == numbers[1], way.policy != "local");
      }
    }
  }
}

TEST_P(ModuleBuffersTest, GoOnExactlyAfterAResume) {
  const Way way{.policy = GetParam()};
  const auto straight = NumbersOf(2, way);
  const testing::TempFolder folder;
  Way first = way;
  first.until = 2;
  NumbersOf(2, first, folder.path());
  const auto rest = NumbersOf(2, way, folder.path());
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_LT(rest[rank].size(), straight[rank].size());
    const std::vector<double> tail(
        straight[rank].end() - static_cast<std::ptrdiff_t>(rest[rank].size()),
        straight[rank].end());
    EXPECT_EQ(rest[rank], tail) << "rank " << rank;
  }
}

// One rank alone reads what two have saved.
TEST_P(ModuleBuffersTest, ACheckpointHoldsOneRanksSet) {
  at::set_num_threads(1);  // Tests that follow fork.
  const Way way{.policy = GetParam()};
  const testing::TempFolder folder;
  const auto saved = NumbersOf(2, way, folder.path());
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_batch_size=2", R"(optimizer={"type":"SGD","params":{"lr":0.1}})",
                     absl::StrCat("module_buffers=", way.policy)}});
  ASSERT_TRUE(job.ok()) << job.status();
  Normed model;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto checkpoints = Checkpointer::Open(**job);
  ASSERT_TRUE(checkpoints.ok()) << checkpoints.status();
  (*checkpoints)->Track("engine", **engine);
  const absl::Status restored = (*checkpoints)->RestoreLatest();
  ASSERT_TRUE(restored.ok()) << restored;
  std::vector<double> read;
  Append(BuffersOf(model), read);
  Append({model.weight}, read);
  const std::vector<double> expected(saved[0].end() - static_cast<std::ptrdiff_t>(read.size()),
                                     saved[0].end());
  EXPECT_EQ(read, expected);
}

TEST_P(ModuleBuffersTest, ASkippedStepLeavesThemAsTheyWere) {
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    const Way way{.policy = GetParam(),
                  .bad_step = 1,
                  .more = {precision, "fp16.initial_scale_power=4"},
                  .until = 3};
    const auto numbers = NumbersOf(2, way);
    const size_t in_step = 2 + 2 * kWidth + 4 + 3;
    for (const auto& rank : numbers) {
      ASSERT_GT(rank.size(), 3 * in_step);
      EXPECT_EQ(rank[in_step], -1) << "skipped";
      const auto buffers = [&](size_t step) {
        return std::vector<double>(
            rank.begin() + static_cast<std::ptrdiff_t>(step * in_step + 2),
            rank.begin() + static_cast<std::ptrdiff_t>((step + 1) * in_step));
      };
      EXPECT_EQ(buffers(1), buffers(0)) << precision;
      EXPECT_NE(buffers(2), buffers(0)) << precision;
    }
  }
}

// BatchNorm of torch, and a layer of a program's own that calls its kernel: that moves no counter
// of LibTorch's for the statistics to which it writes.
class OfTorch : public torch::nn::Module {
 public:
  OfTorch() {
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    weight = register_parameter("weight", at::ones({kWidth}));
    mean = register_buffer("mean", at::zeros({kWidth}));
    variance = register_buffer("variance", at::ones({kWidth}));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    return at::batch_norm(h.exp(), weight, {}, mean, variance, is_training(), 0.1, 1e-5, false)
        .mul(x)
        .square()
        .sum();
  }
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor weight, mean, variance;
};

TEST(BatchNormTest, HasTheStatisticsOfRankZeroAfterEachStep) {
  auto cluster = testing::Cluster::Start({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                                        .overrides = {"train_batch_size=2"},
                                                        .rank = &context}));
    OfTorch model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Source source{context.rank, context.size, 1};
    std::vector<double> numbers;
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(
          engine->Step(source, [&](const at::Tensor& x) { return Loss(model.Loss(x), kRows); })
              .status());
      Append(model.buffers(), numbers);
    }
    return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> texts;
  for (const char* const key : {"numbers/0", "numbers/1"}) {
    texts.push_back((*cluster)->Result(key).value_or(key));
  }
  EXPECT_EQ(texts[1], texts[0]);
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// set_data moves no counter of LibTorch's either. By then the engine compares no copies any more.
TEST(BuffersInOtherMemoryTest, AreOneSetAfterTheNextStep) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                                        .overrides = {"train_batch_size=2"},
                                                        .rank = &context}));
    OfTorch model;
    at::Tensor table = model.register_buffer("table", at::zeros({3}));
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Source source{context.rank, context.size, 1};
    for (int i = 0; i < 6; ++i) {
      if (i == 4) {
        table.set_data(at::full({3}, 10.0 + context.rank));
      }
      DT_RETURN_IF_ERROR(
          engine->Step(source, [&](const at::Tensor& x) { return Loss(model.Loss(x), kRows); })
              .status());
      const double expected = i < 4 ? 0 : 10;
      if (table.ne(expected).any().item<bool>()) {
        return absl::InternalError(absl::StrCat("step ", i + 1, " leaves rank ", context.rank,
                                                " with ", table[0].item<double>()));
      }
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The collectives of steps that change no buffer.
TEST(BuffersThatStayAsTheyAreTest, CostNoCollective) {
  std::vector<uint64_t> calls;
  for (const bool with_buffers : {false, true}) {
    auto cluster = testing::Cluster::Start({.size = 2}, [&](RankContext& context) -> absl::Status {
      at::set_num_threads(1);
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                                          .overrides = {"train_batch_size=2"},
                                                          .rank = &context}));
      class Still : public torch::nn::Module {
       public:
        explicit Still(bool with_buffers) {
          weight = register_parameter("weight", at::ones({kWidth}));
          if (with_buffers) {
            register_buffer("table", at::arange(0, 1000, at::kFloat));
          }
        }
        at::Tensor weight;
      } model(with_buffers);
      DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
      Source source{context.rank, context.size, 1};
      const uint64_t before = job->group().sequence();
      for (int i = 0; i < 3; ++i) {
        DT_RETURN_IF_ERROR(engine
                               ->Step(source,
                                      [&](const at::Tensor& x) {
                                        return Loss(x.mul(model.weight).square().sum(), kRows);
                                      })
                               .status());
      }
      return context.store->Set(absl::StrCat("calls/", context.rank),
                                absl::StrCat(job->group().sequence() - before),
                                Deadline::After(absl::Seconds(10)));
    });
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    const auto text = (*cluster)->Result("calls/0");
    calls.push_back(std::stoull(text.value_or("0")));
    for (const auto& result : (*cluster)->Join()) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
  EXPECT_GT(calls[0], 0U);
  EXPECT_EQ(calls[1], calls[0]);
}

}  // namespace
}  // namespace dtrain::engine_module_buffers_test
