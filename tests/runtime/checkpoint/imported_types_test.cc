// Weights that were imported in one type begin a run in another one: exactly where its type holds
// them, else rounded to nearest even, and masters as they were stored. The bits are written down
// here by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/posix_storage.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/restore/restore_reads.h"
#include "runtime/model/dtypes.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::imported_types_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Writes what `dtrain checkpoint import` writes.
absl::Status WriteWeights(const std::string& run_dir, const Named& tensors) {
  std::filesystem::create_directories(run_dir);
  DT_ASSIGN_OR_RETURN(const auto storage, checkpoint::OpenPosixStorage(run_dir + "/checkpoints"));
  checkpoint::WriterOptions options;
  DT_ASSIGN_OR_RETURN(options.epoch, checkpoint::BeginEpoch(*storage, "imported", 1, std::nullopt));
  checkpoint::SpanSource source;
  for (const auto& [name, tensor] : tensors) {
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.scalar_type()));
    source.model.push_back(
        {{name, dtype, tensor.sizes().vec()},
         {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  source.job.engine = {{"weights_only", true}, {"step", 0}, {"updates", 0}};
  source.rank = {{"ranges", Json::array()}};
  checkpoint::AloneExchange alone;
  return checkpoint::Writer(*storage, options).Save(0, source, alone).status;
}

// One value: as it is stored, as a weight, and as a master. Only the low bits of the type count.
struct Value {
  uint32_t stored;
  uint32_t weight;
  uint32_t master;
};

uint32_t BitsAt(const at::Tensor& tensor, int64_t i) {
  uint32_t bits = 0;
  const auto width = static_cast<size_t>(tensor.itemsize());
  std::memcpy(&bits, static_cast<const char*>(tensor.const_data_ptr()) + width * size_t(i), width);
  return bits;
}

at::Tensor Stored(at::ScalarType type, at::IntArrayRef shape, const std::vector<Value>& values) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(type));
  const auto width = static_cast<size_t>(tensor.itemsize());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    std::memcpy(static_cast<char*>(tensor.mutable_data_ptr()) + width * size_t(i),
                &values[size_t(i) % values.size()].stored, width);
  }
  return tensor;
}

struct Net : torch::nn::Module {
  explicit Net(bool has_more = false) {
    if (has_more) {
      register_parameter("more", at::ones({4}));
    }
    wide = register_parameter("wide", at::ones({3, 3000}));
    trained = register_parameter("trained", at::ones({7}));
    frozen = register_parameter("frozen", at::ones({11}), /*requires_grad=*/false);
    register_buffer("count", at::zeros({2}, at::kLong));
  }
  at::Tensor wide, trained, frozen;
};

struct Ones {
  absl::StatusOr<at::Tensor> Next() { return at::ones({1}); }
};

struct Way {
  const char* name;
  at::ScalarType stored;
  std::vector<Value> values;  // The first one is near 1, and what the step trains.
  std::vector<std::string> more = {};
  int ranks = 1;
};

const std::vector<Value>& FromFp32ToBf16() {
  static const std::vector<Value> values = {
      {0x3F808000, 0x3F80, 0x3F808000},  // Half way, to the even one below,
      {0x3F818000, 0x3F82, 0x3F818000},  // and to the even one above.
      {0x3F808001, 0x3F81, 0x3F808001}, {0x3F807FFF, 0x3F80, 0x3F807FFF},
      {0xBF818000, 0xBF82, 0xBF818000}, {0x00000001, 0x0000, 0x00000001},
      {0x80000000, 0x8000, 0x80000000}, {0x7F7F7FFF, 0x7F7F, 0x7F7F7FFF}};
  return values;
}

absl::Status CheckWeights(const at::Tensor& tensor, const std::vector<Value>& values) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const uint32_t wanted = values[size_t(i) % values.size()].weight;
    if (const uint32_t bits = BitsAt(tensor, i); bits != wanted) {
      return absl::InternalError(
          absl::StrCat("weight ", i, ": ", absl::Hex(bits), ", not ", absl::Hex(wanted)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMasters(const EngineState& state, const std::vector<Value>& wide) {
  if (!state.optimizer.master.defined()) {
    return absl::OkStatus();
  }
  int64_t seen = 0;
  for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
    const bool is_wide = entry.name == "wide";
    for (const plan::OwnedRange& range : state.owned) {
      const auto both = plan::Intersect(range.flat, {entry.offset, entry.offset + entry.elements});
      for (int64_t i = both.begin; i < both.end; ++i, ++seen) {
        const Value& value = wide[is_wide ? size_t(i - entry.offset) % wide.size() : 0];
        if (const uint32_t bits = BitsAt(state.optimizer.master, range.local_of(i));
            bits != value.master) {
          return absl::InternalError(absl::StrCat(entry.name, " ", i - entry.offset, ": master ",
                                                  absl::Hex(bits), ", not ",
                                                  absl::Hex(value.master)));
        }
      }
    }
  }
  return seen > 0 ? absl::OkStatus() : absl::InternalError("the rank keeps no master");
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(const std::string& run_dir, const Way& way,
                                             RankContext* context) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1",
                                        "zero_optimization.stage3_param_persistence_threshold=0"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return testing::MakeTestJob({.run_dir = run_dir, .overrides = overrides, .rank = context});
}

absl::Status BeginRank(RankContext* context, const std::string& run_dir, const Way& way) {
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(run_dir, way, context));
  Net net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  DT_RETURN_IF_ERROR(CheckMasters(engine->state(), way.values));
  absl::Status weights;
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    weights = CheckWeights(net.wide, way.values);
    weights.Update(CheckWeights(net.frozen, way.values));
    weights.Update(CheckWeights(net.trained, {way.values[0]}));
  }));
  DT_RETURN_IF_ERROR(weights);
  Ones source;  // What was read is not taken for what the program wrote.
  return engine
      ->Step(source, [&](const at::Tensor&) { return Loss(net.trained.sum(at::kFloat), 1); })
      .status();
}

class ImportedTypesTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, ImportedTypesTest,
    ::testing::Values(
        Way{"bf16_to_fp32",
            at::kBFloat16,
            {{0x3F81, 0x3F810000, 0}, {0x0001, 0x00010000, 0}, {0xFF7F, 0xFF7F0000, 0}}},
        Way{"fp16_to_fp32_stage3",
            at::kHalf,
            {{0x3C01, 0x3F802000, 0}, {0x0001, 0x33800000, 0}, {0xFBFF, 0xC77FE000, 0}},
            {"zero_optimization.stage=3"},
            2},
        Way{"fp32_to_bf16", at::kFloat, FromFp32ToBf16(), {"bf16.enabled=true"}},
        Way{"fp32_to_bf16_stage1",
            at::kFloat,
            FromFp32ToBf16(),
            {"bf16.enabled=true", "zero_optimization.stage=1"},
            2},
        Way{"fp32_to_bf16_stage3",
            at::kFloat,
            FromFp32ToBf16(),
            {"bf16.enabled=true", "zero_optimization.stage=3"},
            2},
        Way{"fp16_to_bf16",
            at::kHalf,
            {{0x3C01, 0x3F80, 0x3F802000},
             {0x0001, 0x3380, 0x33800000},
             {0xFBFF, 0xC780, 0xC77FE000}},
            {"bf16.enabled=true"}},
        Way{"fp32_to_fp16",
            at::kFloat,
            {{0x3F801000, 0x3C00, 0x3F801000},
             {0x3F803000, 0x3C02, 0x3F803000},
             {0x477FE000, 0x7BFF, 0x477FE000}},
            {"fp16.enabled=true"}}),
    [](const auto& test) { return std::string(test.param.name); });

Named Weights(const Way& way) {
  return {{"wide", Stored(way.stored, {3, 3000}, way.values)},
          {"trained", Stored(way.stored, {7}, {way.values[0]})},
          {"frozen", Stored(way.stored, {11}, way.values)},
          {"count", at::full({2}, 3, at::kLong)}};
}

TEST_P(ImportedTypesTest, WeightsAreConvertedAndMastersAreExact) {
  const Way& way = GetParam();
  const testing::TempFolder folder;
  const std::string run_dir = folder.path() + "/run";
  ASSERT_TRUE(WriteWeights(run_dir, Weights(way)).ok());
  if (way.ranks == 1) {
    const absl::Status status = BeginRank(nullptr, run_dir, way);
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  for (const auto& result : testing::RunRanks({.size = way.ranks}, [&](RankContext& context) {
         return BeginRank(&context, run_dir, way);
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The error of a run that finds such weights.
std::string SaidOf(const Named& tensors, const std::vector<std::string>& more) {
  const testing::TempFolder folder;
  EXPECT_TRUE(WriteWeights(folder.path(), tensors).ok());
  const absl::Status status = BeginRank(
      nullptr, folder.path(), {.name = "", .stored = at::kFloat, .values = {}, .more = more});
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(ImportedWeightsTest, AllThatDoesNotFitIsListedAtOnce) {
  EXPECT_THAT(
      SaidOf({{"wide", at::zeros({3, 3000}, at::kLong)},
              {"trained", at::zeros({8})},
              {"other", at::zeros({2}, at::kBFloat16)},
              {"count", at::zeros({2})}},
             {}),
      AllOf(HasSubstr("does not fit the program's model: it lacks 1 tensor: frozen F32 [11]"),
            HasSubstr("another shape or type of 3 tensors: "),
            HasSubstr("wide is I64 [3, 3000]; the program has F32 [3, 3000]"),
            HasSubstr("trained is F32 [8]; the program has F32 [7]"),
            HasSubstr("count is F32 [2]; the program has I64 [2]"),
            HasSubstr("the program lacks 1 tensor: other BF16 [2]")));
}

// Goes on in `run_dir`, trains a step and saves it.
absl::Status TrainAStep(const std::string& run_dir, bool has_more) {
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(run_dir, {}, nullptr));
  Net net(has_more);
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Ones source;
  DT_RETURN_IF_ERROR(
      engine->Step(source, [&](const at::Tensor&) { return Loss(net.trained.sum(), 1); }).status());
  return checkpoints->Finish();
}

TEST(OtherModelTest, ACheckpointOfAnotherModelIsRefusedByItsTensors) {
  const testing::TempFolder small;
  const testing::TempFolder large;
  ASSERT_TRUE(TrainAStep(small.path(), false).ok());
  ASSERT_TRUE(TrainAStep(large.path(), true).ok());
  EXPECT_THAT(std::string(TrainAStep(small.path(), true).message()),
              HasSubstr("does not fit the program's model: it lacks 1 tensor: more F32 [4]"));
  EXPECT_THAT(std::string(TrainAStep(large.path(), false).message()),
              HasSubstr("does not fit the program's model: the program lacks 1 tensor: "
                        "more F32 [4]"));
}

TEST(ImportedWeightsTest, AValueThatTheTypeCannotHoldIsRefusedByName) {
  const Way way{"", at::kFloat, {{0x3F800000, 0, 0}, {0x49742400, 0, 0}}};  // 1 and 1e6.
  EXPECT_THAT(SaidOf(Weights(way), {"fp16.enabled=true"}),
              AllOf(HasSubstr("tensor wide"), HasSubstr("values that fp16 cannot hold")));
}

// The most memory that this process has taken, or what it takes now.
int64_t MemoryBytes(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(which, 0) == 0) {
      return std::stoll(line.substr(which.size())) * 1024;
    }
  }
  return -1;
}

TEST(ImportedWeightsTest, ALargeTensorIsConvertedWithoutASecondOneOfItsSize) {
  constexpr int64_t kElements = 24 << 20;
  constexpr int64_t kFirst = 2 << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int64_t kMemoryMax = int64_t{4} << 30;  // What they keep beside memory counts too.
#else
  constexpr int64_t kMemoryMax = 64 << 20;
#endif
  at::set_num_threads(1);
  const testing::TempFolder folder;
  {
    const at::Tensor stored = at::arange(kElements, at::kFloat);
    const at::Tensor first = at::arange(kFirst, at::kFloat);
    ASSERT_TRUE(WriteWeights(folder.path(), {{"first", first}, {"large", stored}}).ok());
  }
  const auto storage = checkpoint::OpenPosixStorage(folder.path() + "/checkpoints");
  ASSERT_TRUE(storage.ok());
  const auto from = checkpoint::FindLatest(**storage);
  ASSERT_TRUE(from.ok()) << from.status();
  at::Tensor target = at::ones({kElements}, at::kBFloat16);
  RestoreReads reads(**from);
  {  // What runs for the first time brings pages of libraries and of the heap with it.
    at::Tensor converted = at::ones({kFirst}, at::kBFloat16);
    ASSERT_TRUE(reads.Model({"first", DType::kFloat32, {kFirst}}, 0, converted).ok());
    ASSERT_TRUE(reads.Run().ok());
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // The most so far begins anew.
  const int64_t before = MemoryBytes("VmRSS:");
  ASSERT_TRUE(reads.Model({"large", DType::kFloat32, {kElements}}, 0, target).ok());
  ASSERT_TRUE(reads.Run().ok());
  EXPECT_LT(MemoryBytes("VmHWM:") - before, kMemoryMax);
  EXPECT_TRUE(at::equal(target, at::arange(kElements, at::kFloat).to(at::kBFloat16)));
}

}  // namespace
}  // namespace dtrain::imported_types_test
