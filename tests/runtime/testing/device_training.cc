#include "tests/runtime/testing/device_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/operation_count.h"

namespace dtrain::testing {
namespace {

std::vector<std::string> Overrides(const Way& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "zero_optimization.reduce_bucket_size=2500", "gradient_clipping=0.05",
      R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return overrides;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way, FakeGpu* gpu) {
  DT_ASSIGN_OR_RETURN(
      auto job, MakeTestJob({.run_dir = folder, .overrides = Overrides(way), .rank = context}));
  if (way.place != Way::Place::kHost) {
    DT_RETURN_IF_ERROR(
        gpu->Attach(job->state(), way.place == Way::Place::kStaged,
                    context != nullptr ? context->group_options() : comm::GroupOptions{}));
  }
  return job;
}

namespace {

// Reads no weight.
void GoBackward(Net& net, Way::Own own) {
  at::Tensor sum = at::zeros({});
  for (const at::Tensor& parameter : net.parameters()) {
    sum = sum + 3 * parameter.sum();
  }
  sum.backward();
  if (own == Way::Own::kCleared) {
    net.zero_grad();
  }
}

absl::Status Train(RankContext& context, const Way& way, FakeGpu* gpu, Outcome& outcome) {
  at::set_num_threads(1);
  const TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), way, gpu));
  at::manual_seed(static_cast<uint64_t>(7 + context.rank));  // Weights must come from rank 0.
  Net net(way.segments, way.width);
  if (way.frozen) {
    net.AddFrozen();
  }
  EngineOptions options;
  options.zero_grad = way.zero_grad;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
  Source source{context.rank, context.size, way.accumulation};
  std::vector<StepReport> reports;
  for (int i = 0; i < way.steps; ++i) {
    if (i > 0 && way.own != Way::Own::kNone) {
      GoBackward(net, way.own);
    }
    const int before = gpu->cuda.synchronizations();
    const WaitingOperations operations;
    DT_ASSIGN_OR_RETURN(reports.emplace_back(), engine->Step(source, [&](const at::Tensor& x) {
      const at::Tensor loss =
          way.segments ? net.LossOfSegments(x) : net.Loss(x, !way.pauses || i % 2 == 1);
      if (way.reads) {
        loss.item<float>();
      }
      return Loss(i == way.bad_step && context.rank == 0 ? loss * INFINITY : loss,
                  i == way.empty_step ? 0 : x.size(0));
    }));
    if (i > 1) {  // At the end of the second the GEMM rate is measured.
      outcome.waits += WaitingOperations::Count() + gpu->cuda.synchronizations() - before;
    }
  }
  // A skipped step is looked into, and staged groups wait in a thread of their own.
  if (way.place == Way::Place::kNccl && way.bad_step < 0 && way.empty_step < 0 && !way.reads &&
      !way.waits && outcome.waits > 0) {
    return absl::InternalError(absl::StrCat(outcome.waits, " waits of the host inside steps"));
  }
  for (const StepReport& report : reports) {
    outcome.far = std::max(outcome.far, report.memory.far_activations);
    const double loss = report.loss;
    const double norm = report.grad_norm;
    outcome.losses.push_back(std::isfinite(loss) ? loss : -1);  // JSON knows no infinity.
    outcome.norms.push_back(std::isfinite(norm) ? norm : -1);
    outcome.rates.push_back(report.learning_rate);
    outcome.skipped.push_back(report.skipped ? 1 : 0);
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& tensor : net.parameters()) {
      const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous().view({-1});
      outcome.weights.insert(outcome.weights.end(), flat.const_data_ptr<float>(),
                             flat.const_data_ptr<float>() + flat.numel());
    }
  }));
  const at::Tensor buffer = net.mean.to(at::kFloat).contiguous();
  outcome.buffers.assign(buffer.const_data_ptr<float>(),
                         buffer.const_data_ptr<float>() + buffer.numel());
  if (const int64_t done = engine->state().progress.updates + engine->state().progress.skipped;
      done != way.steps) {
    return absl::InternalError(absl::StrCat(done, " steps are accounted for"));
  }
  const Job::State& state = job->state();
  outcome.collectives =
      (state.device_group != nullptr ? *state.device_group : *state.group).sequence();
  engine.reset();
  job.reset();
  const auto wrong = gpu->cuda.violations();
  const auto wrong_nccl = gpu->nccl.violations();
  return wrong.empty() && wrong_nccl.empty()
             ? absl::OkStatus()
             : absl::InternalError(wrong.empty() ? wrong_nccl.front() : wrong.front());
}

}  // namespace

bool IsTried(std::initializer_list<int> choices) {
  static const bool all = std::getenv("DTRAIN_TEST_LONG") != nullptr;
  return all || std::accumulate(choices.begin(), choices.end(), 0) % 2 == 0;
}

Outcome OutcomeOf(int size, const Way& way) {
  comm::FakeFabric fabric;
  auto cluster = Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    FakeGpu gpu(&fabric);
    Outcome outcome;
    DT_RETURN_IF_ERROR(Train(context, way, &gpu, outcome));
    const Json json = {outcome.losses,  outcome.norms,       outcome.skipped,
                       outcome.weights, outcome.buffers,     outcome.waits,
                       outcome.far,     outcome.collectives, outcome.rates};
    return context.store->Set("outcome/" + std::to_string(context.rank), DumpJson(json),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<Outcome> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result("outcome/" + std::to_string(rank));
    EXPECT_TRUE(text.ok()) << text.status();
    const Json json = *ParseJson(text.value_or("[[],[],[],[],[],0,0,0,[]]"), "outcome");
    Outcome& outcome = all.emplace_back();
    outcome.losses = json[0].get<std::vector<double>>();
    outcome.norms = json[1].get<std::vector<double>>();
    outcome.skipped = json[2].get<std::vector<double>>();
    outcome.weights = json[3].get<std::vector<double>>();
    outcome.buffers = json[4].get<std::vector<double>>();
    outcome.waits = json[5].get<int>();
    outcome.far = json[6].get<int64_t>();
    outcome.collectives = json[7].get<uint64_t>();
    outcome.rates = json[8].get<std::vector<double>>();
    EXPECT_EQ(outcome.losses, all.front().losses) << "rank " << rank;
    EXPECT_EQ(outcome.norms, all.front().norms) << "rank " << rank;
    EXPECT_EQ(outcome.weights, all.front().weights) << "rank " << rank;
    EXPECT_EQ(outcome.buffers, all.front().buffers) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all.front();
}

void ExpectSame(const Outcome& outcome, const Outcome& expected) {
  EXPECT_EQ(outcome.losses, expected.losses);
  EXPECT_EQ(outcome.norms, expected.norms);
  EXPECT_EQ(outcome.weights, expected.weights);
  EXPECT_EQ(outcome.buffers, expected.buffers);
}

void ExpectNear(const Outcome& device, const Outcome& host, double tolerance) {
  ASSERT_EQ(device.losses.size(), host.losses.size());
  for (size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(device.losses[i], host.losses[i], tolerance * std::abs(host.losses[i])) << i;
    EXPECT_NEAR(device.norms[i], host.norms[i], tolerance * std::abs(host.norms[i])) << i;
  }
  ASSERT_EQ(device.weights.size(), host.weights.size());
  for (size_t i = 0; i < host.weights.size(); ++i) {
    ASSERT_NEAR(device.weights[i], host.weights[i], tolerance) << i;
  }
}

}  // namespace dtrain::testing
