// Model folders written and read: shards, conversion, replacement, and nothing half written.
#include "dtrain/model_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::model_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::vector<at::Tensor>& Tensors() {
  static const auto* const tensors = new std::vector<at::Tensor>{
      at::arange(6, at::kFloat).view({2, 3}), at::arange(4, at::kFloat) / 3, at::ones({5})};
  return *tensors;
}

ModelFolderContent Content() {
  ModelFolderContent content;
  content.files = {{"config.json", "{}"}};
  content.tensors = {{"b", at::kFloat, {2, 3}}, {"a", at::kBFloat16, {4}}, {"c", at::kFloat, {5}}};
  return content;
}

absl::Status Write(const std::string& folder, const ModelFolderContent& content) {
  return WriteModelFolder(folder, content, [](size_t i) { return Tensors()[i]; });
}

class Pair : public torch::nn::Module {
 public:
  Pair() {
    b = register_parameter("b", at::zeros({2, 3}));
    a = register_parameter("a", at::zeros({4}));
    c = register_buffer("c", at::zeros({5}));
  }
  at::Tensor a, b, c;
};

TEST(ModelFilesTest, WhatIsWrittenInShardsIsReadBackAndConverted) {
  const testing::TempFolder temporary;
  const std::string folder = temporary.path() + "/model";
  ModelFolderContent content = Content();
  content.shard_bytes_max = 40;  // "b" and "a" take 32 bytes.
  ASSERT_TRUE(Write(folder, content).ok());
  EXPECT_TRUE(fs::exists(folder + "/model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(folder + "/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(folder + "/config.json"));
  const auto files = ModelFiles::Open(folder);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT((*files)->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ((*files)->Describe("a")->dtype, at::kBFloat16);
  at::Tensor a = at::empty({4}, at::TensorOptions(at::kDouble));
  ASSERT_TRUE((*files)->Read("a", a).ok());
  EXPECT_TRUE(at::equal(a, Tensors()[1].to(at::kBFloat16).to(at::kDouble)));
  EXPECT_THAT(std::string((*files)->Read("b", a).message()),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("[4]")));
  EXPECT_THAT(
      std::string((*files)->Read("b", at::empty({2, 3}, at::TensorOptions(at::kLong))).message()),
      HasSubstr("Float"));
}

TEST(ModelFilesTest, TensorsAreComparedByShapeAndValueAcrossBlocks) {
  const testing::TempFolder temporary;
  const std::string folder = temporary.path() + "/model";
  constexpr int64_t kLong = (1 << 20) + 5;  // More than is read at a time.
  const at::Tensor values = at::arange(kLong, at::kFloat).remainder(251);  // Exact in bf16.
  at::Tensor other = values.clone();
  other[kLong - 1] += 1;
  const std::vector<at::Tensor> tensors = {values, values, other, values, values.view({1, -1})};
  ModelFolderContent content;
  content.files = {{"config.json", "{}"}};
  content.tensors = {{"a", at::kFloat, {kLong}},
                     {"same", at::kFloat, {kLong}},
                     {"other", at::kFloat, {kLong}},
                     {"bf16", at::kBFloat16, {kLong}},
                     {"shaped", at::kFloat, {1, kLong}}};
  ASSERT_TRUE(WriteModelFolder(folder, content, [&](size_t i) { return tensors[i]; }).ok());
  const auto files = ModelFiles::Open(folder);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE((*files)->HaveEqualValues("a", "same").value());
  EXPECT_TRUE((*files)->HaveEqualValues("a", "bf16").value());
  EXPECT_FALSE((*files)->HaveEqualValues("a", "other").value());
  EXPECT_FALSE((*files)->HaveEqualValues("a", "shaped").value());
  EXPECT_EQ((*files)->HaveEqualValues("a", "none").status().code(), absl::StatusCode::kNotFound);
}

TEST(ModelFilesTest, LoadModelFillsParametersAndBuffers) {
  const testing::TempFolder temporary;
  const std::string folder = temporary.path() + "/model";
  ASSERT_TRUE(Write(folder, Content()).ok());
  const auto files = ModelFiles::Open(folder);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto job = testing::MakeTestJob({.run_dir = temporary.path()});
  ASSERT_TRUE(job.ok()) << job.status();
  Pair module;
  ASSERT_TRUE(LoadModel(**job, module, **files).ok());
  EXPECT_TRUE(at::equal(module.b, Tensors()[0]));
  EXPECT_TRUE(at::equal(module.a, Tensors()[1].to(at::kBFloat16).to(at::kFloat)));
  EXPECT_TRUE(at::equal(module.c, Tensors()[2]));

  LoadModelOptions other;
  other.public_name = [](const std::string& name) { return name == "a" ? "x" : name; };
  const absl::Status refused = LoadModel(**job, module, **files, other);
  EXPECT_EQ(ExitCodeFor(refused), kExitUsage);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("the files lack 1 tensor: x [4]"),
                    HasSubstr("the model lacks 1 tensor: a [4]"),
                    EndsWith("; give the model the shape of the files' own config.json, or take "
                             "the folder that belongs to it")));
}

TEST(ModelFilesTest, AnEarlierModelIsReplacedAndSomethingElseIsNot) {
  const testing::TempFolder temporary;
  const std::string folder = temporary.path() + "/model";
  ASSERT_TRUE(Write(folder, Content()).ok());
  ModelFolderContent smaller = Content();
  smaller.files.clear();
  ASSERT_TRUE(Write(folder, smaller).ok());
  EXPECT_FALSE(fs::exists(folder + "/config.json"));  // The earlier model's file is gone.
  const std::string other = temporary.path() + "/other";
  fs::create_directory(other);
  std::ofstream(other + "/notes.txt") << "mine";
  EXPECT_EQ(ExitCodeFor(Write(other, smaller)), kExitUsage);
  EXPECT_TRUE(fs::exists(other + "/notes.txt"));
}

TEST(ModelFilesTest, AFailedWriteLeavesWhatWasThere) {
  const testing::TempFolder temporary;
  const std::string folder = temporary.path() + "/model";
  ASSERT_TRUE(Write(folder, Content()).ok());
  const absl::Status failed =
      WriteModelFolder(folder, Content(), [](size_t i) -> absl::StatusOr<at::Tensor> {
        if (i == 2) {
          return absl::UnavailableError("no more");
        }
        return Tensors()[i];
      });
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_TRUE(ModelFiles::Open(folder).ok());
  for (const auto& entry : fs::directory_iterator(temporary.path())) {
    EXPECT_EQ(entry.path().filename(), "model");
  }
}

}  // namespace
}  // namespace dtrain::model_files_test
