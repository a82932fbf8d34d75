// `dtrain checkpoint diff`: what it calls equal, what it finds, and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::tools_diff_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class DiffTest : public ::testing::Test {
 protected:
  // Saves `state` in a run of its own and gives the checkpoint's path.
  std::string Save(const std::string& run, const ShardedState& state, int world_size = 2,
                   int64_t step = 100) {
    const RunFolder made = BeginRun(folder_.path() + "/" + run, run);
    return SaveSharded(*made.storage, made.epoch, world_size, step, state);
  }
  // The entry of the only tensor that is not equal.
  static Json TheDifference(const Json& report) {
    Json found;
    for (const Json& tensor : report["tensors"]) {
      if (tensor["difference"] != "equal") {
        EXPECT_TRUE(found.is_null()) << found << tensor;
        found = tensor;
      }
    }
    return found;
  }
  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  const ShardedState state_ = ShardedState::Random(1);
};

TEST_F(DiffTest, TheSameContentOfTwoRunsIsEqual) {
  const ToolRun run = RunTool(absl::StrCat("diff ", Save("a", state_), " ", Save("b", state_)));
  EXPECT_EQ(run.code, 0) << run.output;
  // The five are weight, bias, the generator's state of each rank and the moments of both together.
  EXPECT_THAT(run.output,
              HasSubstr("Nothing differs: the records are equal, and so are all 5 tensors."));
  const Json report = ToolJson(absl::StrCat("diff ", folder_.path(), "/a ", folder_.path(), "/b"));
  EXPECT_EQ(report["equal"], true);
  for (const Json& tensor : report["tensors"]) {
    EXPECT_EQ(tensor["difference"], "equal");
    EXPECT_EQ(tensor["a"]["xxh3_128"].get<std::string>().size(), 32U);
    EXPECT_EQ(tensor["a"], tensor["b"]);
    EXPECT_EQ(tensor["elements_that_differ"], 0);
  }
}

TEST_F(DiffTest, TensorsAreEqualHoweverManyRanksTheyAreCutOver) {
  const std::string one = Save("one", state_, 1);
  for (const int world_size : {2, 3, 7}) {
    const std::string other = Save(absl::StrCat("of-", world_size), state_, world_size);
    const Json report = ToolJson(absl::StrCat("diff ", one, " ", other), 1);
    EXPECT_EQ(report["tensors_equal"], true) << report;
    ASSERT_EQ(report["records"].size(), 1U) << report;
    EXPECT_EQ(report["records"][0], Json({{"name", "world_size"}, {"a", 1}, {"b", world_size}}));
    ASSERT_EQ(report["tensors"].size(), 4U) << report;
    EXPECT_EQ(report["tensors"][2]["name"], "exp_avg");
    EXPECT_EQ(report["tensors"][2]["a"]["shape"], Json({136}));
    EXPECT_EQ(report["tensors"][3]["rank"], 0);
  }
}

TEST_F(DiffTest, OneElementOfOneRankIsFoundWithItsSize) {
  ShardedState changed = state_;
  changed.exp_avg[100] += 0.25F;
  const std::string a = Save("a", state_, 2);
  const std::string b = Save("b", changed, 3);
  const Json found = TheDifference(ToolJson(absl::StrCat("diff ", a, " ", b), 1));
  EXPECT_EQ(found["name"], "exp_avg");
  EXPECT_EQ(found["part"], "state");
  EXPECT_EQ(found["rank"], Json(nullptr));
  EXPECT_EQ(found["difference"], "values");
  EXPECT_EQ(found["elements"], 136);
  EXPECT_EQ(found["elements_that_differ"], 1);
  EXPECT_EQ(found["largest_difference"].get<double>(),
            static_cast<double>(changed.exp_avg[100]) - static_cast<double>(state_.exp_avg[100]));
  const ToolRun text = RunTool(absl::StrCat("diff ", a, " ", b));
  EXPECT_THAT(text.output, AllOf(ContainsRegex("values differ +0.25 +1 of 136 +exp_avg\n"),
                                 HasSubstr("3 of 4 tensors are equal; 1 record differs.\n"),
                                 Not(HasSubstr("layers.0.weight"))));
  const ToolRun all = RunTool(absl::StrCat("diff --tensors ", a, " ", b));
  EXPECT_THAT(all.output, ContainsRegex("equal +layers.0.weight\n"));
}

TEST_F(DiffTest, ATolerancePassesFloatsThatAreNearAndNothingElse) {
  ShardedState changed = state_;
  changed.weight[5] += 0x1p-10F;
  const std::string a = Save("a", state_);
  const std::string b = Save("b", changed);
  EXPECT_EQ(RunTool(absl::StrCat("diff ", a, " ", b)).code, 1);
  EXPECT_EQ(RunTool(absl::StrCat("diff --tolerance 1e-4 ", a, " ", b)).code, 1);
  const Json near = ToolJson(absl::StrCat("diff --tolerance 1e-2 ", a, " ", b));
  EXPECT_EQ(near["equal"], true);
  EXPECT_EQ(TheDifference(near)["difference"], "within");
  EXPECT_GT(TheDifference(near)["largest_difference"], 0.0009);
  changed.engine["step"] = 101;
  EXPECT_EQ(RunTool(absl::StrCat("diff --tolerance 9 ", a, " ", Save("c", changed))).code, 1);
}

TEST_F(DiffTest, NanEqualsItselfAndIsInfinitelyFarFromANumber) {
  ShardedState nan = state_;
  nan.weight[5] = std::numeric_limits<float>::quiet_NaN();
  const std::string a = Save("a", nan);
  EXPECT_EQ(RunTool(absl::StrCat("diff ", a, " ", Save("b", nan))).code, 0);
  const Json found = TheDifference(
      ToolJson(absl::StrCat("diff --tolerance 1e300 ", a, " ", Save("c", state_)), 1));
  EXPECT_EQ(found["largest_difference"], "Infinity");
  EXPECT_EQ(found["elements_that_differ"], 1);
}

TEST_F(DiffTest, RecordsThatDifferAreNamedWithBothValues) {
  ShardedState changed = state_;
  changed.engine["loss_scale"]["scale"] = 2.0;
  changed.engine["accepted"] = true;
  changed.config = "{}\n";
  const ToolRun run =
      RunTool(absl::StrCat("diff ", Save("a", state_), " ", Save("b", changed, 2, 200)));
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(
      run.output,
      AllOf(ContainsRegex("step +100 +200\n"), ContainsRegex("engine.loss_scale.scale +1.0 +2.0\n"),
            ContainsRegex("engine.accepted +- +true\n"),
            ContainsRegex("files.model/config.json +[0-9a-f]{32} +[0-9a-f]{32}\n"),
            HasSubstr("All 5 tensors are equal; 4 records differ.\n")));
}

TEST_F(DiffTest, ShapesAndTensorsOfOneSideAndAnotherLayoutAreNamed) {
  ShardedState changed = state_;
  changed.weight.resize(88);
  changed.layout_hash = "fedcba9876543210";
  const std::string a = Save("a", state_, 1);
  const Json report = ToolJson(absl::StrCat("diff ", a, " ", Save("b", changed, 1)), 1);
  EXPECT_EQ(report["records"][0]["name"], "layout_hash");
  std::map<std::string, std::string> differences;
  for (const Json& tensor : report["tensors"]) {
    differences[tensor["name"]] = tensor["difference"];
  }
  EXPECT_EQ(differences["layers.0.weight"], "shape");
  EXPECT_EQ(differences["exp_avg"], "other_layout") << "its elements belong to other parameters";
  EXPECT_EQ(differences["layers.0.bias"], "equal");
  // Another program's checkpoint.
  const RunFolder other = BeginRun(folder_.path() + "/other");
  ASSERT_TRUE(SaveOnRanks(*other.storage, OptionsFor(other.epoch), 2, 100)[0].durable());
  const ToolRun text = RunTool(absl::StrCat("diff ", a, " ", folder_.path(), "/other"));
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(
      text.output,
      AllOf(ContainsRegex("only in A +exp_avg\n"), ContainsRegex("only in B +layers.1.scalar\n"),
            ContainsRegex("only in B +master of rank 0\n"),
            ContainsRegex("type F32 in A, BF16 in B|shape .*layers.0.weight")));
}

TEST_F(DiffTest, AnotherTypeIsADifferenceAndItsValuesAreCompared) {
  const std::string exact = folder_.path() + "/exact";
  const std::string a = Save("a", state_);
  ASSERT_EQ(RunTool(absl::StrCat("export ", a, " ", exact)).code, 0);
  ASSERT_EQ(RunTool(absl::StrCat("import ", exact, " ", folder_.path(), "/as-is")).code, 0);
  ASSERT_EQ(RunTool(absl::StrCat("import --dtype bf16 ", exact, " ", folder_.path(), "/bf16")).code,
            0);
  const Json found = TheDifference(
      ToolJson(absl::StrCat("diff ", folder_.path(), "/as-is ", folder_.path(), "/bf16"), 1));
  EXPECT_EQ(found["name"], "layers.0.weight");
  EXPECT_EQ(found["difference"], "type");
  EXPECT_EQ(found["a"]["dtype"], "F32");
  EXPECT_EQ(found["b"]["dtype"], "BF16");
  EXPECT_GT(found["elements_that_differ"], 40);
  EXPECT_LT(found["largest_difference"], 0.5 * 0x1p-8);
}

TEST_F(DiffTest, WhatCannotBeReadEndsWith75AndIsNamedWithItsPlace) {
  const std::string a = Save("a", state_);
  const std::string b = Save("b", state_);
  const std::string file = b + "/state/rank-1-of-2.safetensors";
  const std::string content = *ReadFile(file);
  FlipBit(file, -1);
  ExpectRefused(absl::StrCat("diff ", a, " ", b), 75, {file, "is damaged: bytes 0 to"});
  std::filesystem::resize_file(file, content.size() - 1);
  ExpectRefused(absl::StrCat("diff ", a, " ", b), 75, {file, "bytes, the manifest says"});
  std::filesystem::remove(file);
  ExpectRefused(absl::StrCat("diff ", a, " ", b), 75, {file, "the file is missing"});
  std::filesystem::create_symlink("/etc/passwd", file);
  ExpectRefused(absl::StrCat("diff ", a, " ", b), 75, {file, "is a symbolic link"});
  FlipBit(b + "/MANIFEST.json", 30);
  ExpectRefused(absl::StrCat("diff ", a, " ", b), 75, {b + "/MANIFEST.json", "is damaged"});
}

TEST_F(DiffTest, FilesThatMayNotBeReadEndWith75) {
  const std::string a = Save("a", state_);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  ExpectRefused(absl::StrCat("diff ", a, " ", a), 75,
                {a + "/state/rank-0-of-2.safetensors", "Permission denied"}, 65534);
}

TEST_F(DiffTest, WrongUseEndsWith64) {
  const std::string a = Save("a", state_);
  ExpectRefused("diff " + a, 64, {"B is required"});
  ExpectRefused(absl::StrCat("diff ", a, " ", folder_.path(), "/none"), 64,
                {folder_.path() + "/none is not a folder"});
  ExpectRefused(absl::StrCat("diff ", a, " ", folder_.path(), "/a/step-000000000007.e1"), 64,
                {"is not a folder"});
  ExpectRefused(absl::StrCat("diff ", a, " ", a, " --tolerance -1"), 64,
                {"--tolerance: value -1 is no number from 0"});
}

TEST_F(DiffTest, RangesThatRanksCannotHaveAreRefused) {
  ShardedState state = state_;
  const std::string a = Save("a", state);
  const RunFolder run = BeginRun(folder_.path() + "/overlap");
  RunRanks(2, [&](int, Exchange& exchange) {
    SpanSource source;
    source.state.push_back({{"exp_avg", DType::kFloat32, {8}},
                            {reinterpret_cast<const std::byte*>(state.exp_avg.data()), 32}});
    source.rank = {{"ranges", {{0, 8}}}};  // Both ranks say so.
    Writer writer(*run.storage, OptionsFor(run.epoch));
    ASSERT_TRUE(writer.Save(5, source, exchange).durable());
  });
  ExpectRefused(absl::StrCat("diff ", a, " ", folder_.path(), "/overlap"), 75,
                {"two ranks say to hold element 0 of exp_avg"});
}

TEST_F(DiffTest, MemoryDoesNotGrowWithTheTensors) {
  const std::string paths[] = {folder_.path() + "/a", folder_.path() + "/b"};
  for (const std::string& path : paths) {
    const RunFolder run = BeginRun(path);
    constexpr size_t kScale = 32768;  // Tensors of 32, 64 and 64 MiB.
    ASSERT_TRUE(SaveOnRanks(*run.storage, OptionsFor(run.epoch), 1, 3, kScale)[0].durable());
  }
  // The tool's memory is meant, and not that of this process, which may run many tests before.
  const std::vector<char> much(size_t{128} << 20, 'x');
  const ToolRun run = RunTool(absl::StrCat("diff ", paths[0], " ", paths[1]));
  EXPECT_EQ(run.code, 0) << run.output << much.back();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Two blocks of each side at a time, and the program itself.
  EXPECT_LT(run.memory_bytes, 48U << 20);
#endif
}

}  // namespace
}  // namespace dtrain::checkpoint::tools_diff_test
