#include "tests/runtime/testing/chain_for_tests.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::testing {
namespace {

constexpr int64_t kWidth = 64;
constexpr int64_t kLayers = 7;

using Numbers = std::vector<std::vector<double>>;

// Losses of five steps, an evaluation after the third, a checksum of all weights.
absl::Status Train(RankContext& context, const ChainWay& way, const std::string& group,
                   std::vector<double>& numbers) {
  const TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way, group));
  at::manual_seed(static_cast<uint64_t>(3 + context.rank));
  Chain model;
  EngineOptions options;
  options.units = way.units;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
  Tokens source{.rank = context.rank, .size = context.size, .accumulation = way.accumulation};
  Tokens validation = source;
  const auto loss = [&](const at::Tensor& tokens) {
    return Loss(model.Loss(tokens), tokens.size(0));
  };
  for (int i = 0; i < 5; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
    numbers.push_back(report.loss);
    numbers.push_back(report.grad_norm);
    if (way.lends) {
      DT_RETURN_IF_ERROR(engine->WithParameters([&] { model.weights[0].abs().sum(); }));
    }
    if (i == 2) {
      DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
      numbers.push_back(evaluated);
    }
  }
  return engine->WithParameters([&] {
    double sum = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor fp32 = parameter.to(at::kFloat);       // Itself, if it is that already:
      const auto* const data = fp32.const_data_ptr<float>();  // read by no operation.
      for (int64_t i = 0; i < parameter.numel(); ++i) {
        sum += data[i] * static_cast<double>(1 + i % 7);
      }
    }
    numbers.push_back(sum);
  });
}

}  // namespace

Chain::Chain() {
  const auto make = [this](const std::string& name, at::IntArrayRef shape) {
    return register_parameter(name, at::randn(shape) * 0.1);
  };
  table = make("table", {101, kWidth});
  norm = make("norm", {kWidth});
  for (int64_t i = 0; i < kLayers; ++i) {
    weights.push_back(make(absl::StrCat("weight", i), {kWidth, kWidth}));
    biases.push_back(make(absl::StrCat("bias", i), {kWidth}));
  }
  unused = make("unused", {77, 77});
}

at::Tensor Chain::Loss(const at::Tensor& tokens) {
  at::Tensor h = ops::RmsNorm(at::embedding(table, tokens), norm, 1e-6);
  for (size_t i = 0; i < weights.size(); ++i) {
    h = h + at::tanh(at::linear(h, i % 2 == 0 ? weights[i] : weights[i].t(), biases[i]));
  }
  h = h * at::cat({biases[0].narrow(0, 0, 32), biases[1].narrow(0, 32, 32)}).exp();
  return at::cross_entropy_loss(h.matmul(table.t()), tokens, {}, at::Reduction::Sum);
}

absl::StatusOr<at::Tensor> Tokens::Next() {
  const int64_t share = 36 / size / accumulation;
  const int64_t place = rank * accumulation + call % accumulation;
  const int64_t step = call++ / accumulation;
  at::Tensor rows = at::empty({share}, at::kLong);
  for (int64_t i = 0; i < share; ++i) {
    rows[i] = (step * 131 + (place * share + i) * 17) % 101;
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<Job>> MakeChainJob(RankContext* context, const std::string& folder,
                                                  const ChainWay& way, const std::string& group) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      "deterministic=true",
      "optimizer.params.lr=0.01",
      "eval_batches=2",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.reduce_bucket_size=5000",
      "zero_optimization.stage3_param_persistence_threshold=0"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context, .group = group});
}

std::string Described(const ChainWay& way) {
  return absl::StrCat("stage ", way.stage, ", ", way.accumulation, " micro-batches, ",
                      way.units.size(), " units", way.lends ? ", lent, " : ", ",
                      absl::StrJoin(way.more, ", "));
}

std::vector<std::vector<double>> ChainNumbersOfEach(int size, const std::vector<ChainWay>& ways) {
  constexpr absl::Duration kBound = absl::Seconds(120);
  auto cluster = Cluster::Start(
      {.size = size, .time_bound = kBound}, [&](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        Numbers all(ways.size());
        for (size_t i = 0; i < ways.size(); ++i) {
          DT_RETURN_IF_ERROR(Annotate(Train(context, ways[i], absl::StrCat("way-", i), all[i]),
                                      Described(ways[i])));
        }
        return context.store->Set("numbers/" + std::to_string(context.rank), DumpJson(Json(all)),
                                  Deadline::After(absl::Seconds(10)));
      });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  Numbers first;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result("numbers/" + std::to_string(rank));
    auto all = ParseJson(text.value_or("[]"), "numbers")->get<Numbers>();
    all.resize(ways.size());
    for (size_t i = 0; i < ways.size(); ++i) {
      EXPECT_EQ(all[i].size(), 12U) << Described(ways[i]) << ", rank " << rank;
    }
    if (rank == 0) {
      first = all;
    }
    EXPECT_EQ(all, first) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {  // Join ends the store.
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return first;
}

std::vector<double> ChainNumbers(int size, const ChainWay& way) {
  return ChainNumbersOfEach(size, {way}).front();
}

std::vector<double> ExpectSameNumbers(int size, const std::vector<ChainWay>& ways) {
  const auto numbers = ChainNumbersOfEach(size, ways);
  for (size_t i = 1; i < ways.size(); ++i) {
    EXPECT_EQ(numbers[i], numbers[0])
        << size << " ranks; " << Described(ways[i]) << "; expected: " << Described(ways[0]);
  }
  return numbers[0];
}

bool IsOpen(const at::Tensor& weight) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool open =
      write(ends[1], weight.const_data_ptr(), 1) == 1;  // EFAULT where the memory is closed.
  close(ends[0]);
  close(ends[1]);
  return open;
}

}  // namespace dtrain::testing
