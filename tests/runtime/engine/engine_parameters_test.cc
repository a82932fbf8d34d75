// Programs that change their module's parameters and buffers around an engine: tie them by memory
// before Create, or replace, freeze or unfreeze them after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "dtrain/engine.h"
#include "runtime/model/tensor_overlap.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::engine_parameters_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Layer : torch::nn::Module {
  Layer() { weight = register_parameter("weight", at::randn({8, 8})); }
  at::Tensor weight;
};

// Two layers with a frozen weight between them.
struct Net : torch::nn::Module {
  Net() {
    own = register_parameter("own", at::randn({8}));
    first = register_module("first", std::make_shared<Layer>());
    second = register_module("second", std::make_shared<Layer>());
    frozen = register_parameter("frozen", at::randn({8, 8}), /*requires_grad=*/false);
    scale = register_buffer("scale", at::ones({8}));
  }
  at::Tensor Loss(const at::Tensor& x) const {
    const at::Tensor h = (x.matmul(first->weight) + own).matmul(frozen) * scale.to(x.scalar_type());
    return h.matmul(second->weight).square().sum();
  }
  // Another registered tensor, as a subclass can have it.
  void ReplaceOwn() { own = parameters_["own"] = at::randn({8}, own.options()).requires_grad_(); }
  at::Tensor own, frozen, scale;
  std::shared_ptr<Layer> first, second;
};

struct Rows {
  static absl::StatusOr<at::Tensor> Next() { return at::ones({3, 8}); }
};

const std::vector<std::vector<std::string>>& Ways() {
  static const std::vector<std::vector<std::string>> ways = {
      {"zero_optimization.stage=0"},
      {"zero_optimization.stage=1"},
      {"zero_optimization.stage=2"},
      {"zero_optimization.stage=3"},
      {"zero_optimization.stage=0", "bf16.enabled=true"},
      {"zero_optimization.stage=3", "bf16.enabled=true"}};
  return ways;
}

class EngineParametersTest : public ::testing::Test {
 protected:
  EngineParametersTest() { at::set_num_threads(1); }
  std::unique_ptr<Job> MakeJob(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "train_micro_batch_size_per_gpu=1");
    return *testing::MakeTestJob({.run_dir = folder_.path(), .overrides = std::move(overrides)});
  }
  // Expects each way to refuse its third step, before which `change` was made, with `says`.
  void ExpectRefused(const std::function<void(Net&)>& change, const std::string& says) {
    for (const auto& way : Ways()) {
      SCOPED_TRACE(way.front());
      const auto job = MakeJob(way);
      Net net;
      const auto engine = *Engine::Create(*job, net);
      const auto step = [&] {
        Rows rows;
        return engine
            ->Step(rows,
                   [&](const at::Tensor& x) {
                     return Loss(net.Loss(x.to(net.first->weight.scalar_type())), x.size(0));
                   })
            .status();
      };
      ASSERT_EQ(step(), absl::OkStatus());
      ASSERT_EQ(step(), absl::OkStatus());
      change(net);
      const absl::Status refused = step();
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(says), Not(HasSubstr("\n"))));
    }
  }
  testing::TempFolder folder_;
};

TEST_F(EngineParametersTest, TheNextStepNamesAWeightThatWasFrozen) {
  ExpectRefused([](Net& net) { net.second->weight.requires_grad_(false); },
                "parameter second.weight requires no gradient any more");
  // A loss that needs no gradient at all is no fault of the loss.
  ExpectRefused(
      [](Net& net) {
        for (const at::Tensor& parameter : net.parameters()) {
          parameter.set_requires_grad(false);
        }
      },
      "parameter own requires no gradient any more");
}

TEST_F(EngineParametersTest, TheNextStepNamesAWeightThatWasUnfrozen) {
  ExpectRefused([](Net& net) { net.frozen.requires_grad_(true); },
                "parameter frozen requires a gradient and did not");
}

TEST_F(EngineParametersTest, TheNextStepNamesAWeightThatWasReplaced) {
  ExpectRefused([](Net& net) { net.ReplaceOwn(); }, "parameter own is another or a new one");
  ExpectRefused(
      [](Net& net) {
        net.second = net.replace_module("second", std::make_shared<Layer>());
        net.second->weight.set_data(net.second->weight.to(net.own.scalar_type()));
      },
      "parameter second.weight is another or a new one");
  ExpectRefused(
      [](Net& net) { net.first->register_parameter("late", at::ones({2}, net.own.options())); },
      "parameter first.late is another or a new one");
  ExpectRefused(
      [](Net& net) {
        net.unregister_module("second");  // The loss still uses it.
      },
      "parameter second.weight is no longer in the module");
}

TEST_F(EngineParametersTest, TheNextStepNamesABufferThatIsNoLongerTheOneOfCheckpoints) {
  ExpectRefused([](Net& net) { net.second->register_buffer("late", at::ones({2})); },
                "buffer second.late was not in the module when");
  ExpectRefused([](Net& net) { net.scale.set_data(at::ones({1})); },
                "buffer scale is Float [1] on cpu and was Float [8] on cpu when");
  ExpectRefused([](Net& net) { net.scale.set_data(at::ones({8}, at::kDouble)); },
                "buffer scale is Double [8] on cpu and was Float [8] on cpu when");
}

// A closure that gives a buffer another shape: the step is refused, and leaves it as it was.
TEST_F(EngineParametersTest, AStepThatReshapesABufferPutsItBack) {
  const auto job = MakeJob({});
  Net net;
  const auto engine = *Engine::Create(*job, net);
  Rows rows;
  const auto report = engine->Step(rows, [&](const at::Tensor& x) {
    net.scale.set_data(at::full({1}, 3.0));
    return Loss(net.Loss(x), x.size(0));
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(report.status())) << report.status();
  EXPECT_TRUE(net.scale.equal(at::ones({8}))) << net.scale;
  const auto next =
      engine->Step(rows, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST_F(EngineParametersTest, AFlagThatIsBackBeforeTheStepDisturbsNothing) {
  const auto job = MakeJob({});
  Net net;
  const auto engine = *Engine::Create(*job, net);
  for (int i = 0; i < 2; ++i) {
    for (const bool trains : {false, true}) {
      for (const at::Tensor& parameter : {net.own, net.first->weight, net.second->weight}) {
        parameter.set_requires_grad(trains);
      }
    }
    Rows rows;
    const auto report =
        engine->Step(rows, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
    EXPECT_TRUE(report.ok()) << report.status();
  }
}

// How a module ties its tensors, and which two are named.
struct Tie {
  const char* name;
  std::function<void(Net&)> make;
  const char* says;
};

std::vector<Tie> Ties() {
  return {
      {"by set_data", [](Net& net) { net.second->weight.set_data(net.first->weight.detach()); },
       "parameter second.weight and parameter first.weight share memory"},
      {"transposed", [](Net& net) { net.second->weight.set_data(net.first->weight.detach().t()); },
       "parameter second.weight and parameter first.weight share memory"},
      {"views of one tensor, in part",
       [](Net& net) {
         const at::Tensor both = at::randn({12, 8});
         net.first->weight.set_data(both.narrow(0, 0, 8));
         net.second->weight.set_data(both.narrow(0, 4, 8));
       },
       "parameter second.weight and parameter first.weight share memory"},
      {"columns of one tensor, in part",
       [](Net& net) {
         const at::Tensor both = at::randn({8, 15});
         net.first->weight.set_data(both.narrow(1, 0, 8));
         net.second->weight.set_data(both.narrow(1, 7, 8));
       },
       "parameter second.weight and parameter first.weight share memory"},
      {"a row", [](Net& net) { net.own.set_data(net.first->weight.detach()[3]); },
       "parameter first.weight and parameter own share memory"},
      {"with a frozen weight", [](Net& net) { net.frozen.set_data(net.first->weight.detach()); },
       "parameter first.weight and parameter frozen share memory"},
      {"with a buffer", [](Net& net) { net.scale.set_data(net.first->weight.detach()[0]); },
       "parameter first.weight and buffer scale share memory"},
      {"a buffer with a frozen weight",
       [](Net& net) { net.scale.set_data(net.frozen.detach()[2]); },
       "parameter frozen and buffer scale share memory"},
      {"a parameter that is a buffer too",
       [](Net& net) { net.second->register_buffer("weights", net.first->weight); },
       "parameter first.weight and buffer second.weights share memory"}};
}

TEST_F(EngineParametersTest, WeightsTiedByMemoryAreRefusedByBothNamesAndLeftAsTheyWere) {
  for (const auto& way : Ways()) {
    for (const Tie& tie : Ties()) {
      SCOPED_TRACE(absl::StrCat(way.front(), ", ", tie.name));
      const auto job = MakeJob(way);
      Net net;
      tie.make(net);
      std::vector<const void*> places;
      for (const at::Tensor& tensor : net.parameters()) {
        places.push_back(tensor.const_data_ptr());
      }
      const absl::Status refused = Engine::Create(*job, net).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr(tie.says), HasSubstr("clone"), Not(HasSubstr("\n"))));
      const auto parameters = net.parameters();
      for (size_t i = 0; i < places.size(); ++i) {
        EXPECT_EQ(parameters[i].const_data_ptr(), places[i]) << i;
      }
    }
  }
}

TEST_F(EngineParametersTest, NeighboursInOneTensorAndOneTensorInTwoPlacesTrain) {
  for (const auto& way : Ways()) {
    SCOPED_TRACE(way.front());
    const auto job = MakeJob(way);
    Net net;
    const at::Tensor rows = at::randn({16, 8});
    const at::Tensor columns = at::randn({8, 24});
    net.first->weight.set_data(rows.narrow(0, 0, 8));
    net.own.set_data(rows[9]);
    net.second->weight.set_data(columns.narrow(1, 8, 8));
    net.frozen.set_data(columns.narrow(1, 16, 8));
    net.second->register_parameter("again", net.first->weight);
    const auto engine = Engine::Create(*job, net);
    EXPECT_TRUE(engine.ok()) << engine.status();
  }
}

TEST(TensorOverlapTest, IsOfElementsAndNotOfExtents) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  const auto overlap = [](const at::Tensor& a, const at::Tensor& b) {
    return FindOverlap({a, b}, [](size_t, size_t) { return true; }).has_value();
  };
  EXPECT_TRUE(overlap(base, base.slice(1, 0, 6, 2)));
  EXPECT_FALSE(overlap(base.slice(1, 0, 6, 2), base.slice(1, 1, 6, 2)));
  EXPECT_TRUE(overlap(base.slice(1, 0, 6, 2), base.slice(1, 0, 6, 3)));
  EXPECT_FALSE(overlap(base.narrow(1, 0, 3), base.narrow(1, 3, 3)));
  EXPECT_TRUE(overlap(base.narrow(1, 0, 3).t(), base.narrow(1, 2, 3)));
  EXPECT_FALSE(overlap(base.narrow(0, 0, 2), base.narrow(0, 2, 2)));
  EXPECT_TRUE(overlap(base[1].expand({3, 6}), base.narrow(1, 5, 1)));
  EXPECT_FALSE(overlap(base[1].expand({3, 6}), base[2]));
  EXPECT_FALSE(overlap(base, at::Tensor()));
  EXPECT_FALSE(overlap(base, base.narrow(0, 0, 0)));
  const std::vector<at::Tensor> three = {base[0], base[1], base.select(1, 4)};
  EXPECT_EQ(FindOverlap(three, [](size_t a, size_t) { return a == 1; }),
            std::pair(size_t{1}, size_t{2}));
}

}  // namespace
}  // namespace dtrain::engine_parameters_test
