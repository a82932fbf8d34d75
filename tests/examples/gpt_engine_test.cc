// The example's Transformer trained by an Engine on a device: as on the host, by graphs as eagerly,
// with any kernel of attention, packed documents as the documents apart, and without a wait or an
// allocation in a step. One text for the fake GPU (gpt_engine_device_test) and for a real one
// (gpt_engine_gpu_test), where without a GPU each test says SKIPPED, loudly.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/examples/gpt_training.h"
#include "tests/examples/small_gpt.h"
#include "tests/examples/training_place.h"

namespace gpt_engine_test {
namespace {

using Settings = std::vector<std::string>;

constexpr Architecture kArchitectures[] = {Architecture::kGpt2, Architecture::kLlama,
                                           Architecture::kQwen2, Architecture::kQwen3};

struct Precision {
  const char* name;
  Settings settings;
};
const Precision kFp32 = {"fp32", {}};
const Precision kBf16 = {"bf16", {"bf16.enabled=true"}};
const Precision kFp8 = {"fp8", {"bf16.enabled=true", "fp8.enabled=true"}};

// If a pair of an architecture and a way to train it is slow, only every second pair is tried: each
// architecture has half of the ways, and each way half of the architectures.
bool IsTried(size_t architecture, size_t way) {
  return TrainingPlace::Scale().every_pair || (architecture + way) % 2 == 0;
}

class GptEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status here = TrainingPlace::Here();
    if (absl::IsUnavailable(here)) {
      GTEST_SKIP() << here.message();
    }
    ASSERT_TRUE(here.ok()) << here;
  }
};

// Queries in groups, but for GPT-2; biases and one table for both ends where the published ones
// have them: GPT-2 and Qwen2. Scores of attention are of unit size: it looks about.
GptOptions Options(Architecture architecture) {
  GptOptions options = SmallGpt(architecture, TrainingPlace::Scale().sizes);
  options.initializer_range = 1 / std::sqrt(static_cast<double>(options.hidden_size));
  if (architecture == Architecture::kQwen2) {
    options.attention_bias = options.tie_word_embeddings = true;
  }
  return options;
}

GptTraining Training(Architecture architecture, const Precision& precision,
                     const Settings& more = {}) {
  const TrainingScale& scale = TrainingPlace::Scale();
  GptTraining training{
      .options = Options(architecture),
      .settings = precision.settings,
      .batches = RandomBatches(4, /*rows=*/2, scale.sequence, scale.sizes.vocabulary),
      .steps = scale.steps};
  training.settings.emplace_back("gradient_accumulation_steps=2");
  training.settings.insert(training.settings.end(), more.begin(), more.end());
  return training;
}

std::string Named(Architecture architecture, const Precision& precision) {
  return absl::StrCat(ModelTypeName(architecture), " in ", precision.name);
}

double Tolerance(const Precision& precision) {
  const TrainingScale& scale = TrainingPlace::Scale();
  return precision.settings.empty() ? scale.fp32_tolerance : scale.bf16_tolerance;
}

// The largest difference as a share of the expected number, or of a tenth of the first one where
// that is more: once batches are learnt by heart, a difference of 1e-7 in the learning rate alone
// moves the small losses that are left by a quarter.
double LargestShare(const std::vector<double>& got, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double scale = std::max(std::abs(expected[i]), 0.1 * std::abs(expected[0]));
    const double share = std::abs(got[i] - expected[i]) / scale;
    largest = share > largest || std::isnan(share) ? share : largest;
  }
  return largest;
}

// Losses as they are; norms are of fewer numbers that agree, and get ten times as much.
void ExpectNear(const GptOutcome& got, const GptOutcome& expected, double tolerance) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  ASSERT_LT(expected.losses.back(), 0.98 * expected.losses.front()) << "nothing was learnt";
  const double of_losses = LargestShare(got.losses, expected.losses);
  const double of_norms = LargestShare(got.norms, expected.norms);
  std::printf("largest differences: losses %.2g, norms %.2g\n", of_losses, of_norms);
  EXPECT_LE(of_losses, tolerance);
  EXPECT_LE(of_norms, 10 * tolerance);
}

bool SameBits(const GptOutcome& a, const GptOutcome& b) {
  return a.losses == b.losses && a.norms == b.norms && a.weights.equal(b.weights);
}

// Whether a place's error says that its hardware cannot do it. Loudly.
bool IsBeyondThisDevice(const absl::Status& status) {
  const bool beyond = absl::StrContains(status.message(), "needs a GPU with FP8 units");
  if (beyond) {
    std::fprintf(stderr, "*** SKIPPED: FP8: %s ***\n", std::string(status.message()).c_str());
  }
  return beyond;
}

// Micro-batches were graphs: each of `kinds` was captured.
void ExpectGraphs(const GptOutcome& outcome, int kinds) {
  EXPECT_FALSE(absl::StrContains(outcome.log, "eagerly")) << outcome.log;
  EXPECT_TRUE(absl::StrContains(outcome.log, absl::StrCat("graph ", kinds, " holds")))
      << outcome.log;
  EXPECT_FALSE(absl::StrContains(outcome.log, absl::StrCat("graph ", kinds + 1, " holds")))
      << outcome.log;
}

// Deterministic, so that a device gives the same bits again. Where LibTorch's kernels do not, which
// a second eager training shows, graphs are held to the tolerance between devices.
void ExpectGraphsAsEager(Architecture architecture, const Precision& precision, int stage) {
  GptTraining training =
      Training(architecture, precision,
               {"deterministic=true", absl::StrCat("zero_optimization.stage=", stage)});
  const auto eager = TrainGptHere(training);
  if (IsBeyondThisDevice(eager.status())) {
    return;
  }
  ASSERT_TRUE(eager.ok()) << eager.status();
  training.settings.emplace_back("cuda_graphs=true");
  const auto graphs = TrainGptHere(training);
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  ExpectGraphs(*graphs, 2);  // Gradients are copied by the first of a step, added by the other.
  if (SameBits(*graphs, *eager)) {
    return;
  }
  training.settings.back() = "cuda_graphs=false";
  const auto again = TrainGptHere(training);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(SameBits(*again, *eager)) << "eager steps repeat their bits, graphs have others";
  ExpectNear(*graphs, *eager, Tolerance(precision));
}

TEST_F(GptEngineTest, GraphsGiveTheBitsOfEagerSteps) {
  const std::pair<Precision, int> ways[] = {{kFp32, 1}, {kBf16, 0}, {kBf16, 1}, {kFp8, 0}};
  for (size_t i = 0; i < std::size(kArchitectures); ++i) {
    for (size_t j = 0; j < std::size(ways); ++j) {
      if (IsTried(i, j)) {
        const auto& [precision, stage] = ways[j];
        SCOPED_TRACE(absl::StrCat(Named(kArchitectures[i], precision), ", stage ", stage));
        ExpectGraphsAsEager(kArchitectures[i], precision, stage);
      }
    }
  }
}

TEST_F(GptEngineTest, TrainsAsOnTheHostEagerlyAndByGraphs) {
  for (size_t i = 0; i < std::size(kArchitectures); ++i) {
    const Architecture architecture = kArchitectures[i];
    for (const Precision& precision : {kFp32, kBf16}) {
      GptTraining training = Training(architecture, precision);
      const auto host = TrainGpt(training, nullptr);
      ASSERT_TRUE(host.ok()) << host.status();
      const bool is_fp32 = precision.settings.empty();
      for (const bool by_graphs : {false, true}) {
        if (!IsTried(i, static_cast<size_t>(is_fp32 == by_graphs))) {
          continue;
        }
        const char* const graphs = by_graphs ? "cuda_graphs=true" : "cuda_graphs=false";
        SCOPED_TRACE(absl::StrCat(Named(architecture, precision), ", ", graphs));
        training.settings.emplace_back(graphs);
        const auto device = TrainGptHere(training);
        ASSERT_TRUE(device.ok()) << device.status();
        ExpectNear(*device, *host, Tolerance(precision));
      }
    }
  }
}

// By graphs, as the benchmark of a step has them.
TEST_F(GptEngineTest, KernelsOfAttentionAgree) {
  for (const Architecture architecture : kArchitectures) {
    GptTraining training = Training(architecture, kBf16, {"cuda_graphs=true"});
    const auto expected = TrainGptHere(training);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const auto& [name, backend] : AttentionBackends()) {
      const auto& offered = TrainingPlace::Scale().attention;
      if (std::count(offered.begin(), offered.end(), backend) == 0) {
        continue;
      }
      SCOPED_TRACE(absl::StrCat(ModelTypeName(architecture), ", attention by ", name));
      training.options.attention_backend = backend;
      const auto outcome = TrainGptHere(training);
      // A build of LibTorch without cuDNN, or a GPU before sm_80, has not all of them.
      if (!outcome.ok() && absl::StrContains(outcome.status().message(), "o available kernel")) {
        std::fprintf(stderr, "*** SKIPPED: attention by %s: %s ***\n", name.c_str(),
                     std::string(outcome.status().message()).c_str());
        continue;
      }
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      ExpectGraphs(*outcome, 2);
      ExpectNear(*outcome, *expected, Tolerance(kBf16));
    }
  }
}

// Two rows, of two documents and of one; or the three, a micro-batch each.
std::vector<dtrain::Batch> Documents(bool packed) {
  const TrainingScale& scale = TrainingPlace::Scale();
  const dtrain::Batch rows = RandomBatches(1, 2, scale.sequence, scale.sizes.vocabulary)[0];
  const int64_t first = scale.sequence * 5 / 8;
  const std::vector<int64_t> lengths = {first, scale.sequence - first, scale.sequence};
  std::vector<at::Tensor> positions;
  std::vector<dtrain::Batch> apart;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    positions.push_back(at::arange(length, at::kLong));
    const auto cut = [&](const at::Tensor& x) {
      return x.flatten().narrow(0, begin, length).view({1, length});
    };
    apart.push_back(
        {.tokens = cut(rows.tokens), .targets = cut(rows.targets), .targets_counted = length});
    begin += length;
  }
  if (!packed) {
    return apart;
  }
  return {{.tokens = rows.tokens,
           .targets = rows.targets,
           .positions = at::cat(positions).view_as(rows.tokens),
           .targets_counted = rows.tokens.numel(),
           .document_lengths = lengths}};
}

TEST_F(GptEngineTest, PackedDocumentsAreTheDocumentsApart) {
  for (size_t i = 0; i < std::size(kArchitectures); ++i) {
    const Architecture architecture = kArchitectures[i];
    for (const Precision& precision : {kFp32, kBf16}) {
      if (!IsTried(i, precision.settings.size())) {
        continue;
      }
      GptTraining training = Training(architecture, precision, {"gradient_accumulation_steps=3"});
      training.batches = Documents(/*packed=*/false);
      const auto apart = TrainGptHere(training);
      ASSERT_TRUE(apart.ok()) << apart.status();
      training.batches = Documents(/*packed=*/true);
      training.settings.back() = "gradient_accumulation_steps=1";
      for (const char* const graphs : {"cuda_graphs=false", "cuda_graphs=true"}) {
        SCOPED_TRACE(absl::StrCat(Named(architecture, precision), ", ", graphs));
        training.settings.emplace_back(graphs);
        const auto packed = TrainGptHere(training);
        ASSERT_TRUE(packed.ok()) << packed.status();
        ExpectNear(*packed, *apart, Tolerance(precision));
      }
    }
  }
}

TEST_F(GptEngineTest, AStepWaitsForNothingAndTakesNoMemory) {
  for (size_t i = 0; i < std::size(kArchitectures); ++i) {
    const Architecture architecture = kArchitectures[i];
    const Precision precisions[] = {kFp32, kBf16, kFp8};
    for (size_t j = 0; j < std::size(precisions); ++j) {
      const Precision& precision = precisions[j];
      for (const bool by_graphs : {false, true}) {
        if (!IsTried(i + j, by_graphs ? 1 : 0)) {
          continue;
        }
        const char* const graphs = by_graphs ? "cuda_graphs=true" : "cuda_graphs=false";
        SCOPED_TRACE(absl::StrCat(Named(architecture, precision), ", ", graphs));
        GptTraining training = Training(architecture, precision, {graphs});
        training.watched_step = 5;  // Two eager, two that warm up and capture, one launched.
        training.steps = 7;
        const auto outcome = TrainGptHere(training);
        if (IsBeyondThisDevice(outcome.status())) {
          continue;
        }
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_THAT(outcome->costs.waits, ::testing::IsEmpty());
        EXPECT_THAT(outcome->costs.memory, ::testing::IsEmpty());
      }
    }
  }
}

}  // namespace
}  // namespace gpt_engine_test
