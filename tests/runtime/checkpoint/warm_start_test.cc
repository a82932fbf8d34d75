// A model that begins with some weights of a model folder, of a checkpoint or of a run.
#include "dtrain/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/model_files.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::warm_start_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankContext;

struct Net : torch::nn::Module {
  explicit Net(double value, bool contiguous = true) {
    const at::Tensor rows = at::full({4, 3}, value).t();
    body = register_parameter("body", contiguous ? rows.contiguous() : rows);
    norm = register_parameter("norm", at::full({3}, value));
    head = register_parameter("head", at::full({5}, value));
    mean = register_buffer("mean", at::full({2}, value));
  }
  at::Tensor body, norm, head, mean;
};

absl::Status WriteFolder(const std::string& folder) {
  ModelFolderContent content;
  content.files = {{"config.json", "{}"}};
  content.tensors = {{"body", at::kFloat, {3, 4}},
                     {"norm", at::kBFloat16, {3}},
                     {"head", at::kFloat, {7}},  // Another shape.
                     {"mean", at::kFloat, {2}}};
  const std::vector<at::Tensor> values = {at::arange(12, at::kFloat).view({3, 4}),
                                          at::full({3}, 2.0), at::zeros({7}), at::full({2}, 6.0)};
  return WriteModelFolder(folder, content, [&](size_t i) { return values[i]; });
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(const std::string& folder,
                                             RankContext* context = nullptr) {
  at::set_num_threads(1);
  return testing::MakeTestJob(
      {.run_dir = folder,
       .overrides = {"train_micro_batch_size_per_gpu=1", "optimizer.params.lr=0.1"},
       .rank = context});
}

class WarmStartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    ASSERT_TRUE(WriteFolder(model_).ok());
  }
  std::string SaidOf(const WarmStartOptions& options, const std::string& path = "") {
    auto job = *MakeJob(folder_.path() + "/run");
    Net net(1);
    const auto started = WarmStart(*job, net, path.empty() ? model_ : path, options);
    EXPECT_FALSE(started.ok());
    EXPECT_TRUE(at::equal(net.norm, at::ones({3}))) << "nothing is read";
    return std::string(started.status().message());
  }
  testing::TempFolder folder_;
  const std::string model_ = folder_.path() + "/model-folder";
};

TEST_F(WarmStartTest, ReadsWhatIsNamedAndKeepsTheRest) {
  auto job = *MakeJob(folder_.path() + "/run");
  Net net(1, /*contiguous=*/false);
  const auto started = WarmStart(*job, net, model_, {.exclude = {"he*"}});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->read, ElementsAre("body", "norm", "mean"));
  EXPECT_THAT(started->kept, ElementsAre("head"));
  EXPECT_TRUE(at::equal(net.body, at::arange(12, at::kFloat).view({3, 4})));
  EXPECT_TRUE(at::equal(net.norm, at::full({3}, 2.0))) << "converted from bf16";
  EXPECT_TRUE(at::equal(net.head, at::ones({5})));
  EXPECT_TRUE(at::equal(net.mean, at::full({2}, 6.0)));
  EXPECT_TRUE(net.body.requires_grad());
  Net other(1);
  const auto renamed = WarmStart(*job, other, model_,
                                 {.include = {"body"}, .public_name = [](const std::string& name) {
                                    return name == "body" ? std::string("body") : "model." + name;
                                  }});
  ASSERT_TRUE(renamed.ok()) << renamed.status();
  EXPECT_THAT(renamed->read, ElementsAre("body"));
  const auto missing =
      WarmStart(*job, other, model_,
                {.include = {"norm"},
                 .public_name = [](const std::string& name) { return "model." + name; },
                 .allow_missing = true});
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_THAT(missing->read, ::testing::IsEmpty());
}

TEST_F(WarmStartTest, MistakesAreNamedBeforeAnythingIsRead) {
  EXPECT_THAT(SaidOf({}),
              AllOf(HasSubstr("does not fit the model"), HasSubstr("head is [7] and not [5]")));
  EXPECT_THAT(SaidOf({.include = {"norm"},
                      .public_name = [](const std::string& name) { return "model." + name; }}),
              HasSubstr("model.norm is not there"));
  EXPECT_THAT(SaidOf({.exclude = {"hed*"}}),
              AllOf(HasSubstr("WarmStartOptions::exclude: \"hed*\" names no parameter"),
                    HasSubstr("nearest: head")));
  EXPECT_THAT(SaidOf({}, folder_.path() + "/nowhere"),
              AllOf(HasSubstr("/nowhere is no model folder"), HasSubstr("run directory")));
}

// Types that are not converted are found for all tensors, before any is read.
TEST_F(WarmStartTest, TypesThatAreNotConvertedAreNamedTogether) {
  const std::string folder = folder_.path() + "/integers";
  ModelFolderContent content;
  content.files = {{"config.json", "{}"}};
  content.tensors = {{"body", at::kLong, {3, 4}},
                     {"norm", at::kFloat, {3}},
                     {"head", at::kFloat, {5}},
                     {"mean", at::kInt, {2}}};
  const std::vector<at::Tensor> values = {at::ones({3, 4}, at::kLong), at::full({3}, 2.0),
                                          at::ones({5}), at::ones({2}, at::kInt)};
  ASSERT_TRUE(WriteModelFolder(folder, content, [&](size_t i) { return values[i]; }).ok());
  EXPECT_THAT(SaidOf({}, folder), AllOf(HasSubstr("body is of type Long and not Float"),
                                        HasSubstr("mean is of type Int and not Float")));
}

TEST_F(WarmStartTest, AllRanksGetRankZerosResult) {
  for (const bool fits : {true, false}) {
    for (const auto& result :
         testing::RunRanks({.size = 3}, [&](RankContext& context) -> absl::Status {
           const testing::TempFolder folder;
           DT_ASSIGN_OR_RETURN(auto job, MakeJob(folder.path(), &context));
           Net net(context.rank);
           const auto started = WarmStart(
               *job, net, model_,
               {.exclude = fits ? std::vector<std::string>{"head"} : std::vector<std::string>{}});
           if (!fits) {
             return absl::StrContains(started.status().message(), "head is [7] and not [5]")
                        ? absl::OkStatus()
                        : absl::InternalError(started.status().ToString());
           }
           DT_RETURN_IF_ERROR(started.status());
           DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
           return started->read.size() == 3 && at::equal(net.norm, at::full({3}, 2.0))
                      ? absl::OkStatus()
                      : absl::InternalError("other weights");
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

// Its head is its body, as the output layer of many language models is their embedding.
struct Tied : torch::nn::Module {
  Tied() {
    head = register_parameter("head", at::ones({3, 4}));
    register_parameter("body", head);
    norm = register_parameter("norm", at::ones({3}));
  }
  at::Tensor head, norm;
};

// The files have the tied weights by the second name alone.
TEST_F(WarmStartTest, TiedWeightsAreReadByAnyOfTheirNames) {
  ModelFolderContent content;
  content.files = {{"config.json", "{}"}};
  content.tensors = {{"body", at::kFloat, {3, 4}}, {"norm", at::kFloat, {3}}};
  const std::string folder = folder_.path() + "/tied";
  ASSERT_TRUE(WriteModelFolder(folder, content, [&](size_t i) -> absl::StatusOr<at::Tensor> {
                return i == 0 ? at::full({3, 4}, 5.0) : at::full({3}, 2.0);
              }).ok());
  auto job = *MakeJob(folder_.path() + "/run");
  Tied net;
  const auto started = WarmStart(*job, net, folder, {.include = {"body"}});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->read, ElementsAre("head"));
  EXPECT_THAT(started->kept, ElementsAre("norm"));
  EXPECT_TRUE(at::equal(net.head, at::full({3, 4}, 5.0)));
  Tied other;
  const auto kept = WarmStart(*job, other, folder, {.exclude = {"body"}});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(kept->read, ElementsAre("norm"));
  EXPECT_TRUE(at::equal(other.head, at::ones({3, 4})))
      << "what is left out by one name is left out";
}

TEST_F(WarmStartTest, WhatIsThrownOnRankZeroEndsTheOtherRanksToo) {
  for (const bool is_number : {false, true}) {
    for (const auto& result :
         testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
           const testing::TempFolder folder;
           DT_ASSIGN_OR_RETURN(auto job, MakeJob(folder.path(), &context));
           Net net(1);
           const auto started =
               WarmStart(*job, net, model_, {.public_name = [&](const std::string& name) {
                 if (is_number) {
                   throw 7;  // As some libraries do.
                 }
                 return name.empty() ? name : throw std::out_of_range("no such name");
               }});
           const char* const said =
               is_number ? "in WarmStart: something was thrown" : "in WarmStart: no such name";
           return absl::StrContains(started.status().message(), said)
                      ? absl::OkStatus()
                      : absl::InternalError(started.status().ToString());
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

struct Ones {
  absl::StatusOr<at::Tensor> Next() { return at::ones({1}); }
};

TEST_F(WarmStartTest, TheNewestCheckpointOfARunIsAModelToo) {
  const std::string run = folder_.path() + "/first";
  at::Tensor trained;
  {
    auto job = *MakeJob(run);
    Net net(1);
    auto engine = *Engine::Create(*job, net);
    auto checkpoints = *Checkpointer::Open(*job);
    checkpoints->Track("engine", *engine);
    ASSERT_TRUE(checkpoints->RestoreLatest().ok());
    Ones source;
    for (int step = 0; step < 2; ++step) {
      const auto report = engine->Step(source, [&](const at::Tensor& x) {
        return Loss((net.body.sum() + net.norm.sum() + net.head.sum()) * x.sum(), 1);
      });
      ASSERT_TRUE(report.ok()) << report.status();
    }
    ASSERT_TRUE(checkpoints->Finish().ok());
    trained = net.norm.detach().clone();
  }
  ASSERT_FALSE(at::equal(trained, at::ones({3})));
  const auto folder = FindModelFolder(run);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(*folder, AllOf(HasSubstr("/checkpoints/step-000000000002"), HasSubstr("/model")));
  const std::string checkpoint = std::filesystem::path(*folder).parent_path();
  for (const std::string& path : {run, run + "/checkpoints", checkpoint, *folder}) {
    auto job = *MakeJob(folder_.path() + "/second");
    Net net(9);
    const auto started = WarmStart(*job, net, path);
    ASSERT_TRUE(started.ok()) << path << ": " << started.status();
    EXPECT_TRUE(at::equal(net.norm, trained)) << path;
  }
}

}  // namespace
}  // namespace dtrain::warm_start_test
