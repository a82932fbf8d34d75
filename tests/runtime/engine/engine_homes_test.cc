// Gradients of bf16 weights that products put into the fp32 gradient buffer themselves, in an
// engine on the fake GPU: as many products as there should be, which of them add (beta = 1), the
// numbers of the host, and the bits of eager steps in graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "runtime/ops/device_kernels.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/fake_op_kernels.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"

namespace dtrain::engine_homes_test {
namespace {

constexpr int64_t kWidth = 32;
constexpr int kSteps = 5;

class HomesNet : public torch::nn::Module {
 public:
  HomesNet() {
    const auto weight = [this](const std::string& name, int64_t out, int64_t in) {
      return register_parameter(name, at::randn({out, in}).mul(0.15));
    };
    first = weight("first", kWidth, kWidth);
    down = weight("down", kWidth, 2 * kWidth);
    up = weight("up", 2 * kWidth, kWidth);  // The flat weights lie in reverse: gate, up.
    gate = weight("gate", 2 * kWidth, kWidth);
    gain = register_parameter("gain", at::ones({kWidth}));
  }
  at::Tensor Block(const at::Tensor& x) const {
    return ops::MergedLinear(ops::SwiGlu(ops::MergedLinear(x, {gate, up})), {down});
  }
  at::Tensor Sum(const at::Tensor& h) const { return (h * gain).square().sum(at::kFloat); }
  at::Tensor first, down, up, gate, gain;
};

using Model = std::function<at::Tensor(const HomesNet&, const at::Tensor&)>;

at::Tensor Plain(const HomesNet& net, const at::Tensor& x) { return net.Sum(net.Block(x)); }
// Uses each weight three times: before, in and after a segment whose backward runs inside the
// others'. `first` is used first, so its gradient comes last, and no bucket is complete before.
at::Tensor Nested(const HomesNet& net, const at::Tensor& x, bool recompute) {
  const auto block = [&net](const at::Tensor& in) { return net.Block(in); };
  const at::Tensor in = net.Block(ops::MergedLinear(x, {net.first}));
  return net.Sum(net.Block(recompute ? Recompute(block, in) : block(in)));
}
at::Tensor Thrice(const HomesNet& net, const at::Tensor& x) { return Nested(net, x, false); }
at::Tensor Recomputed(const HomesNet& net, const at::Tensor& x) { return Nested(net, x, true); }
// A weight of operations of both kinds, whose gradients come in either order.
at::Tensor Mixed(const HomesNet& net, const at::Tensor& x) {
  const at::Tensor twice =
      at::linear(net.Block(at::linear(x, net.gate).narrow(1, 0, kWidth)), net.gate);
  return net.Sum(twice.narrow(1, 0, kWidth));
}

struct Way {
  Model model = Plain;
  int accumulation = 1;
  bool device = true;
  bool graphs = false;
  std::string stage = "0";
  std::string precision = "bf16.enabled=true";
  int64_t bucket = 2500;
  // Called with a weight once the engine holds it; the node that it gives is kept during training.
  std::function<std::shared_ptr<torch::autograd::Node>(const at::Tensor& weight)> watch = nullptr;
};

struct Outcome {
  std::vector<double> numbers;  // Losses and norms.
  testing::FakeMatmulLaunches last_step;
  int graph_launches = 0;
};

struct Rows {
  at::ScalarType type;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const at::Tensor row = at::arange(0, 6, at::kFloat).view({-1, 1});
    const double shift = static_cast<double>(++call) * 131;
    return at::sin(row * 17 + at::arange(0, kWidth, at::kFloat) + shift).to(type);
  }
};

absl::Status Train(const Way& way, Outcome& outcome) {
  comm::FakeFabric fabric;
  testing::FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob(
          {.run_dir = folder.path(),
           .overrides = {"train_micro_batch_size_per_gpu=1", way.precision,
                         absl::StrCat("gradient_accumulation_steps=", way.accumulation),
                         "zero_optimization.stage=" + way.stage,
                         absl::StrCat("zero_optimization.reduce_bucket_size=", way.bucket),
                         R"(optimizer={"type":"AdamW","params":{"lr":0.003}})",
                         absl::StrCat("cuda_graphs=", way.graphs ? "true" : "false")}}));
  if (way.device) {
    DT_RETURN_IF_ERROR(gpu.Attach(job->state(), /*staged=*/false, comm::GroupOptions{}));
    ops::SetGpuForTesting(testing::FakeKernelTable(&gpu.cuda),
                          Device::KernelStream(gpu.cuda.host_stream()));
  }
  const absl::Cleanup off = [] { ops::SetGpuForTesting(nullptr, nullptr); };
  at::manual_seed(5);
  auto net = std::make_unique<HomesNet>();
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, *net));
  auto watched = way.watch == nullptr ? nullptr : way.watch(net->down);
  Rows source{net->gate.scalar_type()};
  std::vector<StepReport> reports;
  for (int step = 0; step < kSteps; ++step) {
    const testing::FakeMatmulLaunches before = testing::FakeMatmuls();
    DT_ASSIGN_OR_RETURN(auto report, engine->Step(source, [&](const at::Tensor& x) {
      return Loss(way.model(*net, x), x.size(0));
    }));
    const testing::FakeMatmulLaunches after = testing::FakeMatmuls();
    outcome.last_step = {after.all - before.all, after.adding - before.adding,
                         after.into_fp32 - before.into_fp32};
    reports.push_back(std::move(report));
  }
  for (const StepReport& report : reports) {
    outcome.numbers.push_back(report.loss);
    outcome.numbers.push_back(report.grad_norm);
  }
  outcome.graph_launches = gpu.cuda.graph_launches();
  watched.reset();
  engine.reset();
  net.reset();  // Its weights are the engine's memory.
  job.reset();
  EXPECT_THAT(gpu.cuda.violations(), ::testing::IsEmpty());
  return absl::OkStatus();
}

Outcome OutcomeOf(const Way& way) {
  at::set_num_threads(1);
  Outcome outcome;
  const absl::Status trained = Train(way, outcome);
  EXPECT_TRUE(trained.ok()) << trained;
  return outcome;
}

// bf16 values whose roundings differ where sums do: some 2^-8 of each, a few times over.
void ExpectNear(const Outcome& got, const Outcome& expected, double tolerance) {
  ASSERT_EQ(got.numbers.size(), expected.numbers.size());
  for (size_t i = 0; i < got.numbers.size(); ++i) {
    EXPECT_NEAR(got.numbers[i], expected.numbers[i], tolerance * expected.numbers[i]) << i;
  }
}

TEST(EngineHomesTest, EveryMicroBatchAddsItsProductsToTheGradientBuffer) {
  for (const char* const stage : {"0", "1"}) {
    for (const int accumulation : {1, 3}) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", accumulation, " micro-batches"));
      const Outcome device = OutcomeOf({.accumulation = accumulation, .stage = stage});
      // Gate and up as one, and down: forward, the rows of down, and the weights.
      EXPECT_EQ(device.last_step.all, 5 * accumulation);
      EXPECT_EQ(device.last_step.into_fp32, 2 * accumulation);
      EXPECT_EQ(device.last_step.adding, 2 * (accumulation - 1));
      ExpectNear(device, OutcomeOf({.accumulation = accumulation, .device = false, .stage = stage}),
                 0.02);
    }
  }
}

TEST(EngineHomesTest, SharedAndRecomputedWeightsGetEveryGradientOnce) {
  for (const int accumulation : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(accumulation, " micro-batches"));
    const Outcome thrice = OutcomeOf({.model = Thrice, .accumulation = accumulation});
    // Three uses of two products, and one of another; the first of a step writes.
    EXPECT_EQ(thrice.last_step.into_fp32, 7 * accumulation);
    EXPECT_EQ(thrice.last_step.adding, 7 * accumulation - 3);
    ExpectNear(thrice, OutcomeOf({.model = Thrice, .accumulation = accumulation, .device = false}),
               0.05);
    const Outcome again =
        OutcomeOf({.model = Recomputed, .accumulation = accumulation, .bucket = 1'000'000});
    EXPECT_EQ(again.last_step.into_fp32, thrice.last_step.into_fp32);
    EXPECT_EQ(again.last_step.adding, thrice.last_step.adding);
    ExpectNear(again, thrice, 1e-4);
    ExpectNear(OutcomeOf({.model = Mixed, .accumulation = accumulation}),
               OutcomeOf({.model = Mixed, .accumulation = accumulation, .device = false}), 0.05);
  }
}

TEST(EngineHomesTest, GradientsInFp32AreAddedInPlaceToo) {
  for (const Model& model : {Model(Plain), Model(Thrice), Model(Recomputed), Model(Mixed)}) {
    const Way way{
        .model = model, .accumulation = 3, .precision = "bf16.enabled=false", .bucket = 1'000'000};
    Way host = way;
    host.device = false;
    const Outcome device = OutcomeOf(way);
    EXPECT_EQ(device.last_step.all, 0) << "ATen's products take fp32";
    ExpectNear(device, OutcomeOf(host), 1e-4);
  }
}

// Counts the gradients that are really there.
class CountingHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit CountingHook(int& seen) : seen_(seen) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    seen_ += inputs[0].defined() ? 1 : 0;
    return outputs;
  }

 private:
  int& seen_;
};

TEST(EngineHomesTest, AWeightThatAHookWatchesHasItsGradientGoThroughAutograd) {
  const Outcome plain = OutcomeOf({.accumulation = 2});
  int seen = 0;
  Way way{.accumulation = 2};
  way.watch = [&seen](const at::Tensor& weight) {
    weight.register_hook(
        [&seen](const at::Tensor& gradient) { seen += gradient.defined() ? 1 : 0; });
    return nullptr;
  };
  const Outcome hooked = OutcomeOf(way);
  EXPECT_EQ(seen, 2 * kSteps);
  EXPECT_EQ(hooked.last_step.into_fp32, plain.last_step.into_fp32 - 2);
  ExpectNear(hooked, plain, 0.02);

  seen = 0;
  way.watch = [&seen](const at::Tensor& weight) {
    auto node = torch::autograd::impl::grad_accumulator(weight);
    node->add_post_hook(std::make_unique<CountingHook>(seen));
    return node;  // Or it would end with each graph.
  };
  const Outcome behind = OutcomeOf(way);
  EXPECT_EQ(seen, 2 * kSteps);
  EXPECT_EQ(behind.last_step.into_fp32, plain.last_step.into_fp32 - 2);
  ExpectNear(behind, plain, 0.02);
}

TEST(EngineHomesTest, GraphsHoldTheProductsThatWriteAndThoseThatAdd) {
  for (const Model& model : {Model(Plain), Model(Thrice), Model(Mixed)}) {
    for (const int accumulation : {1, 3}) {
      Way way{.model = model, .accumulation = accumulation};
      const Outcome eager = OutcomeOf(way);
      way.graphs = true;
      const Outcome graphs = OutcomeOf(way);
      EXPECT_EQ(graphs.numbers, eager.numbers);
      EXPECT_GT(graphs.graph_launches, 0);
      EXPECT_EQ(graphs.last_step.all, 0) << "the host queued them once";
    }
  }
}

}  // namespace
}  // namespace dtrain::engine_homes_test
