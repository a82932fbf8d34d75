#include "runtime/plan/layout/leaf_modules.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::leaf_modules_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kMixtral[] = "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock";

const std::vector<ModuleFacts>& Model() {
  static const auto* const model = new std::vector<ModuleFacts>{
      {"", "gpt::ModelImpl", ""},
      {"layers.0.moe", "gpt::MixtralSparseMoeBlockImpl", "layers.0.moe"},
      {"layers.0.moe.experts.0", "gpt::Expert", "layers.0.moe.experts.0"},
      {"layers.1.moe", "gpt::MixtralSparseMoeBlockImpl", "layers.1.moe"},
      {"layers.2.moe", "gpt::MixtralSparseMoeBlockImpl", "layers.1.moe"},
      {"head", "torch::nn::LinearImpl", "head"}};
  return *model;
}

std::vector<std::string> Find(const LeafModuleConfig& wanted) {
  const auto found = FindLeafModules(Model(), wanted);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(std::vector<std::string>{"error"});
}

std::string Refused(const LeafModuleConfig& wanted) {
  const auto found = FindLeafModules(Model(), wanted);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(found.status().message());
}

TEST(LeafModulesTest, ClassesAreComparedAsPythonAndCppSpellThem) {
  const auto blocks = ElementsAre("layers.0.moe", "layers.1.moe");
  EXPECT_THAT(Find({.classes = {"MixtralSparseMoeBlock"}}), blocks);
  EXPECT_THAT(Find({.classes = {"MixtralSparseMoeBlockImpl"}}), blocks);
  EXPECT_THAT(Find({.classes = {kMixtral}}), blocks);
  EXPECT_THAT(Find({.classes = {"gpt::MixtralSparseMoeBlock"}}), blocks);
  EXPECT_THAT(Find({.classes = {"Linear"}}), ElementsAre("head"));
  EXPECT_THAT(Find({.classes = {"torch.nn.Linear"}}), ElementsAre("head"));
  EXPECT_THAT(Find({.classes = {"Model"}}), ElementsAre(""));
  EXPECT_THAT(Find({}), IsEmpty());
}

TEST(LeafModulesTest, NamesAndSuffixesAreThoseOfNamedModules) {
  EXPECT_THAT(Find({.names = {"head", "layers.1.moe"}}), ElementsAre("layers.1.moe", "head"));
  EXPECT_THAT(Find({.names = {"layers.2.moe"}}), ElementsAre("layers.1.moe"))
      << "shared: its parameters have the name that is registered first";
  EXPECT_THAT(Find({.name_suffixes = {".moe"}}), ElementsAre("layers.0.moe", "layers.1.moe"));
  EXPECT_THAT(Find({.classes = {"Expert"}, .names = {"head"}, .name_suffixes = {"0.moe"}}),
              ElementsAre("layers.0.moe", "layers.0.moe.experts.0", "head"));
}

TEST(LeafModulesTest, WhatFitsNothingIsRefusedWithWhatIsNear) {
  EXPECT_THAT(Refused({.classes = {"other::MixtralSparseMoeBlock"}}),
              HasSubstr("leaf_module.classes: \"other::MixtralSparseMoeBlock\" is the class of no "
                        "module of the model that has parameters; nearest: "
                        "gpt::MixtralSparseMoeBlockImpl"));
  EXPECT_THAT(Refused({.names = {"layers.0.mo"}}),
              HasSubstr("leaf_module.names: \"layers.0.mo\" is the name of no module of the model "
                        "that has parameters; nearest: layers.0.moe"));
  EXPECT_THAT(Refused({.name_suffixes = {"experts"}}),
              HasSubstr("leaf_module.name_suffixes: \"experts\" is the end of the name of no"));
}

TEST(LeafModulesTest, DefaultClassesNeedFitNone) {
  EXPECT_THAT(Find({.classes = {"a.b.Qwen", kMixtral}, .default_classes = {"a.b.Qwen"}}),
              ElementsAre("layers.0.moe", "layers.1.moe"));
  EXPECT_THAT(Refused({.classes = {"a.b.Other"}, .default_classes = {"a.b.Qwen"}}),
              HasSubstr("a.b.Other"));
}

}  // namespace
}  // namespace dtrain::plan::leaf_modules_test
