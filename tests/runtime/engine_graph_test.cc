// Steps as CUDA graphs, over the fakes: the bits of eager steps, new inputs and new random numbers
// in every launch, few operations queued by the host, and one line where something cannot be
// captured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/record_function.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "dtrain/token_loader.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/step_graphs.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/device_net.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/job_for_tests.h"

namespace dtrain {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Net;

constexpr int kSteps = 8;

// Operations of LibTorch that this thread calls itself, and of what is queued beside them.
class HostOperations {
 public:
  explicit HostOperations(const comm::FakeCuda& cuda) : cuda_(cuda), before_(cuda.queued()) {
    Count() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& /*function*/) -> std::unique_ptr<at::ObserverContext> {
          ++Count();
          return nullptr;
        }));
  }
  ~HostOperations() { at::removeCallback(handle_); }
  int64_t count() const { return Count() + cuda_.queued() - before_; }

 private:
  static int64_t& Count() {
    static int64_t count = 0;
    return count;
  }
  const comm::FakeCuda& cuda_;
  const int64_t before_;
  at::CallbackHandle handle_;
};

struct Way {
  std::vector<std::string> settings = {};
  int64_t accumulation = 1;
  // Rows of the batch of a step: the shape.
  std::function<int64_t(int64_t call)> rows = [](int64_t /*call*/) { return 12; };
  // In place of Net::Loss.
  std::function<at::Tensor(Net&, const at::Tensor&)> loss = [](Net& net, const at::Tensor& x) {
    return net.Loss(x);
  };
  int64_t failing_call = -1;                  // Of the data source, once.
  bool evaluates = false;                     // After each step.
  bool fused = false;                         // dtrain's operations take the fake's kernels.
  bool layers = false;                        // The model has Net::layers.
  absl::Status no_graphs = absl::OkStatus();  // What the device says.
};

struct Outcome {
  std::vector<double> numbers;  // Losses, norms, evaluations, weights and buffers.
  std::vector<int64_t> operations;
  int closure_calls = 0;
  int graph_launches = 0;
  int waits_inside_graphs = 0;
  int waits = 0;  // After the second step.
  std::string log;
};

struct Rows {
  const Way& way;
  int64_t call = 0;
  bool failed = false;
  absl::StatusOr<at::Tensor> Next() {
    if (call == way.failing_call && !failed) {
      failed = true;
      return absl::UnavailableError("no data, on purpose");
    }
    const int64_t rows = way.rows(call);
    ++call;
    return testing::Rows(call, 0, rows);
  }
};

void Append(const at::Tensor& tensor, std::vector<double>& to) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view({-1});
  to.insert(to.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

absl::Status Train(const Way& way, bool graphs, Outcome& outcome) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  gpu.graphs = way.no_graphs;
  const testing::TempFolder folder;
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "zero_optimization.reduce_bucket_size=2500",
      "gradient_clipping=0.05",
      "eval_batches=1",
      R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})",
      absl::StrCat("cuda_graphs=", graphs ? "true" : "false")};
  overrides.insert(overrides.end(), way.settings.begin(), way.settings.end());
  DT_ASSIGN_OR_RETURN(auto job,
                      testing::MakeTestJob({.run_dir = folder.path(), .overrides = overrides}));
  DT_RETURN_IF_ERROR(gpu.Attach(job->state(), /*staged=*/false, comm::GroupOptions{}));
  if (way.fused) {
    ops::SetGpuForTesting(testing::FakeKernelTable(&gpu.cuda),
                          Device::KernelStream(gpu.cuda.host_stream()));
  }
  const absl::Cleanup not_fused = [] { ops::SetGpuForTesting(nullptr, nullptr); };
  at::manual_seed(5);
  auto owned_net = std::make_unique<Net>(/*segments=*/way.layers);
  Net& net = *owned_net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  Rows source{way};
  Rows held_out{.way = way, .failed = true};
  const auto loss = [&](const at::Tensor& x) {
    ++outcome.closure_calls;
    return Loss(way.loss(net, x), x.size(0));
  };
  std::vector<StepReport> reports;
  int failures = 0;
  while (engine->step() < kSteps) {
    const int waits = gpu.cuda.synchronizations();
    HostOperations operations(gpu.cuda);
    auto report = engine->Step(source, loss);
    outcome.operations.push_back(operations.count());
    if (!report.ok() && source.failed && failures++ == 0) {
      continue;
    }
    DT_RETURN_IF_ERROR(report.status());
    outcome.waits += engine->step() > 2 ? gpu.cuda.synchronizations() - waits : 0;
    reports.push_back(*std::move(report));
    if (way.evaluates) {
      DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(held_out, loss));
      outcome.numbers.push_back(value);
    }
  }
  for (const StepReport& report : reports) {
    outcome.numbers.push_back(report.loss);
    outcome.numbers.push_back(report.grad_norm);
  }
  for (const at::Tensor& tensor : {net.a, net.b, net.c, net.unused, net.mean}) {
    Append(tensor, outcome.numbers);
  }
  outcome.graph_launches = gpu.cuda.graph_launches();
  outcome.waits_inside_graphs = gpu.cuda.waits_inside_graphs();
  engine.reset();
  owned_net.reset();  // Its weights are the engine's memory.
  job.reset();
  EXPECT_THAT(gpu.cuda.violations(), IsEmpty());
  EXPECT_EQ(gpu.cuda.live_handles(), 0);
  return absl::OkStatus();
}

Outcome OutcomeOf(const Way& way, bool graphs) {
  at::set_num_threads(1);
  Outcome outcome;
  ::testing::internal::CaptureStderr();
  const absl::Status trained = Train(way, graphs, outcome);
  outcome.log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(trained.ok()) << trained;
  return outcome;
}

size_t Times(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

TEST(EngineGraphTest, LaunchesGiveTheBitsOfEagerSteps) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=1"}) {
      for (const int64_t accumulation : {1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(precision, " ", stage, ", ", accumulation, " micro-batches"));
        const Way way{.settings = {precision, stage}, .accumulation = accumulation};
        const Outcome eager = OutcomeOf(way, false);
        const Outcome graphs = OutcomeOf(way, true);
        EXPECT_EQ(graphs.numbers, eager.numbers);
        EXPECT_EQ(eager.graph_launches, 0);
        // Two steps; then the first of a step and the others are warmed up and captured.
        EXPECT_EQ(graphs.closure_calls, 2 * accumulation + (accumulation == 1 ? 2 : 4));
        EXPECT_EQ(graphs.waits, 0);
        EXPECT_GE(graphs.waits_inside_graphs, 2 * (kSteps - 4)) << "reductions start in backward";
        EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
        EXPECT_EQ(Times(graphs.log, "holds a micro-batch"), accumulation == 1 ? 1 : 2);
      }
    }
  }
}

// The weights stay as they are: whatever differs from step to step comes from the batch.
TEST(EngineGraphTest, ALaunchReadsTheNextBatch) {
  Way way{.settings = {"optimizer.params.lr=0"}};
  const Outcome graphs = OutcomeOf(way, true);
  ASSERT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  ASSERT_GE(graphs.graph_launches, kSteps - 3);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  const at::Tensor same = testing::Rows(1, 0, 12);
  way.loss = [&](Net& net, const at::Tensor& /*x*/) { return net.Loss(same); };
  const Outcome unread = OutcomeOf(way, true);
  for (size_t step = 1; step < kSteps; ++step) {
    const size_t at = 2 * step;
    EXPECT_NE(graphs.numbers[at], graphs.numbers[at - 2]) << "the loss of step " << step + 1;
    EXPECT_EQ(unread.numbers[at], unread.numbers[at - 2]) << "the weights changed";
  }
}

TEST(EngineGraphTest, WhatTheHostQueuesDoesNotGrowWithTheModel) {
  const auto deep = [](int layers) {
    return Way{.loss = [layers](Net& net, const at::Tensor& x) {
      at::Tensor h = at::tanh(x.matmul(net.a));
      for (int i = 1; i < layers; ++i) {
        h = at::tanh(h * 1.01 + 0.1);
      }
      return (h.matmul(net.b) * net.c).square().sum();
    }};
  };
  const Outcome shallow = OutcomeOf(deep(1), true);
  const Outcome graphs = OutcomeOf(deep(20), true);
  const Outcome eager = OutcomeOf(deep(20), false);
  EXPECT_EQ(graphs.numbers, eager.numbers);
  for (size_t step = 5; step < kSteps; ++step) {
    EXPECT_EQ(graphs.operations[step], graphs.operations[4]) << step;
    EXPECT_EQ(graphs.operations[step], shallow.operations[step]) << step;
    EXPECT_GT(eager.operations[step], 2 * graphs.operations[step]) << step;
  }
}

TEST(EngineGraphTest, EachLaunchDrawsAnew) {
  const Way way{.loss = [](Net& net, const at::Tensor& x) {
    return net.Loss(at::dropout(x, 0.3, /*train=*/true));
  }};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_GT(graphs.graph_launches, 0);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_NE(graphs.numbers, OutcomeOf({}, true).numbers);
}

TEST(EngineGraphTest, FusedOperationsKernelsArePartOfIt) {
  const Way way{
      .loss =
          [](Net& net, const at::Tensor& x) {
            const at::Tensor h =
                ops::Gelu(ops::Dropout(x.matmul(net.a), 0.2), ops::GeluForm::kTanh).matmul(net.b);
            return (ops::RmsNorm(h, net.c, 1e-5) * net.c).square().sum();
          },
      .fused = true};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 0);
}

// Eager micro-batches of a step share the codes of weights; a launch must not read those of the
// step in which it was captured.
TEST(EngineGraphTest, ALaunchMakesFp8CodesOfTheWeightsThatItFinds) {
  const Way way{.settings = {"bf16.enabled=true"},
                .accumulation = 3,
                .rows = [](int64_t /*call*/) { return 16; },
                .loss =
                    [](Net& net, const at::Tensor& x) {
                      at::Tensor h = at::tanh(x.to(net.a.scalar_type()).matmul(net.a));
                      for (const at::Tensor& layer : net.layers) {
                        h = h + ops::Fp8Linear(h, layer, {}, {.enabled = true});
                      }
                      return (h.matmul(net.b) * net.c).square().sum(at::kFloat);
                    },
                .fused = true,
                .layers = true};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 0);
}

TEST(EngineGraphTest, EvaluationsAndFailedStepsComeBetween) {
  Way way{.accumulation = 2, .evaluates = true};
  EXPECT_EQ(OutcomeOf(way, true).numbers, OutcomeOf(way, false).numbers);
  way.failing_call = 11;  // In the middle of a step whose first micro-batch was a graph.
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0);
}

TEST(EngineGraphTest, EachOfAFewShapesHasItsGraph) {
  const Way way{.accumulation = 2, .rows = [](int64_t call) { return call % 3 == 0 ? 12 : 7; }};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GT(Times(graphs.log, "holds a micro-batch"), 2) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 2);
}

// Each with its line, said once, and with the numbers of eager steps.
void ExpectEager(const Way& way, const std::string& reason) {
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers) << reason;
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 1) << graphs.log;
  EXPECT_THAT(graphs.log, HasSubstr(reason));
}

TEST(EngineGraphTest, ShapesWithoutEndRunEagerly) {
  const Way way{.accumulation = 4, .rows = [](int64_t call) { return 5 + call; }};
  ExpectEager(way, "micro-batches came in more than 8 kinds");
}

TEST(EngineGraphTest, AClosureThatWaitsForTheDeviceRunsEagerly) {
  ExpectEager({.loss =
                   [](Net& net, const at::Tensor& x) {
                     const at::Tensor loss = net.Loss(x);
                     return loss.item<double>() > 1e9 ? loss * 0.5 : loss;
                   }},
              "operation not permitted when stream is capturing");
  // After the first micro-batch of a step: what that one left must stay.
  ExpectEager({.accumulation = 3,
               .loss =
                   [](Net& net, const at::Tensor& x) {
                     if (net.a.grad().defined()) {
                       net.mean.sum().item<double>();
                     }
                     return net.Loss(x);
                   }},
              "operation not permitted when stream is capturing");
}

TEST(EngineGraphTest, ADeviceThatGivesNoGraphSaysWhy) {
  ExpectEager({.no_graphs = absl::NotFoundError("no libdtrain_torch_cuda.so")},
              "no libdtrain_torch_cuda.so");
}

TEST(EngineGraphTest, WhatARunsSettingsRuleOutIsSaidAtItsStart) {
  ExpectEager({.settings = {"fp16.enabled=true"}}, "the host gives each backward of fp16");
  ExpectEager({.settings = {"zero_optimization.stage=2"}}, "zero_optimization.stage 2");
  ExpectEager({.settings = {"activation_checkpointing.mode=full"}}, "recomputed segment");
  ExpectEager({.settings = {"activation_checkpointing.cpu_checkpointing=true"}},
              "what recomputed segments keep goes to the host");
  const auto config = Config::Parse("{}", "none", {"train_batch_size=1"}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(WhyNoGraphs(*config, /*on_host=*/true), HasSubstr("on the CPU"));
  EXPECT_EQ(WhyNoGraphs(*config, /*on_host=*/false), "");
}

TEST(EngineGraphTest, ABatchSaysWhatItHoldsOrRunsEagerly) {
  Batch batch{.tokens = at::zeros({2, 3}, at::kLong),
              .targets = at::zeros({2, 3}, at::kLong),
              .targets_counted = 5};
  const auto known = GraphInputsOf(batch);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->tensors.size(), 3);
  EXPECT_FALSE(known->tensors[2]->defined());
  EXPECT_EQ(known->numbers, std::vector<int64_t>{5});
  struct Opaque {
    at::Tensor x;
  } opaque;
  EXPECT_FALSE(GraphInputsOf(opaque).has_value());
}

}  // namespace
}  // namespace dtrain
