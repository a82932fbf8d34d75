#include "runtime/plan/memory/memory_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::memory_plan_test {
namespace {

using ::testing::HasSubstr;
using Kind = PrecisionConfig::Kind;

MemoryRequest Of(double parameters, Kind precision, int stage, int64_t ranks = 1) {
  MemoryRequest request;
  request.model.parameters = parameters;
  request.precision = precision;
  request.zero_stage = stage;
  request.world_size = ranks;
  return request;
}

TEST(MemoryPlan, StatesAreEighteenBytesAParameterInMixedPrecisionAndSixteenInFp32) {
  EXPECT_EQ(PlanMemory(Of(1, Kind::kBFloat16, 0)).states(), 18);
  EXPECT_EQ(PlanMemory(Of(1, Kind::kFloat16, 0)).states(), 18);
  EXPECT_EQ(PlanMemory(Of(1, Kind::kFloat32, 0)).states(), 16);
}

TEST(MemoryPlan, EachStageSharesOutMore) {
  const double parameters = 12e6;
  const auto states = [&](Kind kind, int stage) {
    return PlanMemory(Of(parameters, kind, stage, 4)).states() / parameters;
  };
  EXPECT_DOUBLE_EQ(states(Kind::kBFloat16, 1), 2 + 4 + 12.0 / 4);
  EXPECT_DOUBLE_EQ(states(Kind::kBFloat16, 2), 2 + 16.0 / 4);
  EXPECT_DOUBLE_EQ(states(Kind::kBFloat16, 3), 18.0 / 4);
  EXPECT_DOUBLE_EQ(states(Kind::kFloat32, 1), 4 + 4 + 8.0 / 4);
  EXPECT_DOUBLE_EQ(states(Kind::kFloat32, 2), 4 + 12.0 / 4);
}

TEST(MemoryPlan, StageThreeCountsWhatStaysWholeAndWhatWaitsInBlocks) {
  MemoryRequest request = Of(1000e6, Kind::kBFloat16, 3, 4);
  request.model.tensors = {{2e6, 490}, {5e4, 400}};
  request.bucket_elements = 6'000'000;
  request.live_elements = 100'000'000;
  const MemoryPlan plain = PlanMemory(request);
  EXPECT_EQ(plain.live, 2 * 100e6);
  request.block_elements = 130e6;  // Blocks on a GPU, for units of several sizes.
  EXPECT_EQ(PlanMemory(request).live, 2 * 130e6);
  request.block_elements = 0;
  request.persistence = {.parameter_max = 100'000, .model_max = INT64_MAX};
  EXPECT_EQ(PersistentElements(request.model, request.persistence), 20e6);
  EXPECT_EQ(PlanMemory(request).live, 2 * 100e6 + 2 * 2 * 20e6) << "twice while it is refreshed";
  request.persistence.model_max = 1'020'000;
  EXPECT_EQ(PersistentElements(request.model, request.persistence), 20 * 5e4);
  request.persistence = {};
  request.quantized_weights = true;
  EXPECT_DOUBLE_EQ(PlanMemory(request).live, plain.live + 260.0 / 256 * (4 * 6e6 + 1000e6 / 4));
  request.quantized_gradients = true;
  EXPECT_DOUBLE_EQ(PlanMemory(request).buckets, plain.buckets + 260.0 / 256 * 2 * 6e6);
  request.states_on_host = true;  // A GPU's rank: one stream takes bucket after bucket.
  EXPECT_DOUBLE_EQ(PlanMemory(request).live, plain.live + 260.0 / 256 * (6e6 + 1000e6 / 4));
  EXPECT_DOUBLE_EQ(PlanMemory(request).buckets, plain.buckets + 260.0 / 256 * 6e6);
  request.hpz_partition_size = 4;
  EXPECT_DOUBLE_EQ(PlanMemory(request).values, plain.values + 2 * 1000e6 / 4);
}

TEST(MemoryPlan, FromStageTwoOnTwoBucketsOfFp32GradientsTravelAndNothingIsCompressed) {
  for (const int stage : {0, 1, 2, 3}) {
    MemoryRequest request = Of(12e6, Kind::kBFloat16, stage, 4);
    request.bucket_elements = 1'000'000;
    request.model.largest_gradient = 3e6;
    const double plain = PlanMemory(request).buckets;
    EXPECT_EQ(plain, 2 * 3e6 + (stage >= 2 ? 2 * 4 * 1e6 : 0)) << stage;
    request.bucket_elements = 50'000'000;
    EXPECT_EQ(PlanMemory(request).buckets, 2 * 3e6 + (stage >= 2 ? 2 * 4 * 12e6 : 0))
        << "no bucket is larger than the model";
    request.bucket_elements = 1'000'000;
    for (const char* const type : {"int8", "powersgd"}) {
      request.compression = type;
      EXPECT_EQ(PlanMemory(request).buckets == plain, stage >= 2) << stage << " " << type;
    }
  }
}

MemoryRequest ReadFrom(const std::vector<std::string>& settings) {
  const auto config = Config::Parse("{}", "none", settings, 1);
  EXPECT_TRUE(config.ok()) << config.status();
  MemoryRequest request;
  ReadInto(*config, request);
  return request;
}

TEST(MemoryPlan, OffloadIsWhatTheConfigurationSays) {
  const std::string states = "zero_optimization.offload_optimizer=";
  const auto states_in = [&](const std::string& section) {
    return ReadFrom({"train_batch_size=1", "zero_optimization.stage=1", states + section});
  };
  const MemoryRequest none = states_in(R"({"device": "none", "buffer_count": 5})");
  EXPECT_EQ(none.offload_buffers, 0);
  EXPECT_FALSE(none.offload_to_file);
  const MemoryRequest memory = states_in(R"({"device": "cpu", "buffer_count": 5, "ratio": 0.5})");
  EXPECT_EQ(memory.offload_buffers, 5);
  EXPECT_EQ(memory.offload_ratio, 0.5);
  EXPECT_FALSE(memory.offload_to_file);
  EXPECT_TRUE(states_in(R"({"device": "nvme", "nvme_path": "/n"})").offload_to_file);
  const auto weights_in = [&](const std::string& section) {
    const MemoryRequest request = ReadFrom({"train_batch_size=1", "zero_optimization.stage=3",
                                            "zero_optimization.offload_param=" + section});
    return std::pair(request.values_far, request.values_in_file);
  };
  EXPECT_EQ(weights_in(R"({"device": "none"})"), std::pair(false, false));
  EXPECT_EQ(weights_in(R"({"device": "cpu"})"), std::pair(true, false));
  EXPECT_EQ(weights_in(R"({"device": "nvme", "nvme_path": "/n"})"), std::pair(true, true));
}

TEST(MemoryPlan, GatheredWeightsTakeTheirBlocksWhereTheseAreKnown) {
  MemoryRequest request = Of(1000e6, Kind::kBFloat16, 3, 4);
  request.model.tensors = {{2e6, 490}, {5e4, 400}};
  request.live_elements = 100'000'000;
  request.block_elements = 160'000'000;
  EXPECT_EQ(PlanMemory(request).live, 2 * 160e6);
  request.persistence = {.parameter_max = 100'000, .model_max = INT64_MAX};
  EXPECT_EQ(PlanMemory(request).live, 2 * 160e6 + 2 * 2 * 20e6);
  request.zero_stage = 2;
  EXPECT_EQ(PlanMemory(request).live, 0);
}

TEST(MemoryPlan, FrozenWeightsAreSharedOutAtStageThreeAndHaveNoStates) {
  for (const int stage : {0, 2, 3}) {
    MemoryRequest request = Of(10e6, Kind::kBFloat16, stage, 4);
    request.live_elements = 50'000'000;
    const MemoryPlan plain = PlanMemory(request);
    request.model.frozen = {{1e6, 990}, {5e4, 200}};
    EXPECT_EQ(FrozenElements(request.model), 1000e6);
    const MemoryPlan plan = PlanMemory(request);
    EXPECT_DOUBLE_EQ(plan.values, plain.values + 2 * 1000e6 / (stage == 3 ? 4 : 1)) << stage;
    EXPECT_EQ(plan.states() - plan.values, plain.states() - plain.values) << stage;
    EXPECT_EQ(plan.buckets, plain.buckets) << stage;
    EXPECT_EQ(plan.live, stage == 3 ? 2 * 50e6 : 0) << stage;
  }
}

TEST(MemoryPlan, SmallFrozenWeightsStayWholeWithinWhatOthersLeave) {
  MemoryRequest request = Of(10e6, Kind::kBFloat16, 3, 4);
  request.model.tensors = {{5e4, 20}};
  request.model.frozen = {{1e6, 990}, {5e4, 200}};
  request.persistence = {.parameter_max = 100'000, .model_max = INT64_MAX};
  EXPECT_EQ(PersistentElements(request.model, request.persistence), 220 * 5e4);
  request.persistence.model_max = 1'060'000;
  EXPECT_EQ(PersistentElements(request.model, request.persistence), 21 * 5e4);
}

TEST(MemoryPlan, CompressionRemembersWhatItLeftOutOfEveryGradient) {
  MemoryRequest request = Of(1000e6, Kind::kBFloat16, 1, 4);
  request.bucket_elements = 6'000'000;
  const double plain = PlanMemory(request).buckets;
  request.compression = "powersgd";
  EXPECT_DOUBLE_EQ(PlanMemory(request).buckets, plain + 4 * 1000e6);
  request.compression = "int8";
  EXPECT_DOUBLE_EQ(PlanMemory(request).buckets,
                   plain + 4 * (1000e6 + 2 * 250e6) + 2 * 260.0 / 256 * 1000e6);
  request.states_on_host = true;  // A GPU's rank.
  EXPECT_DOUBLE_EQ(PlanMemory(request).buckets,
                   plain + 4 * (1000e6 + 250e6) + 2 * 260.0 / 256 * 6e6);
  request.world_size = 1;
  request.compression = "none";
  const double alone = PlanMemory(request).buckets;
  request.compression = "int8";
  EXPECT_EQ(PlanMemory(request).buckets, alone) << "one rank compresses nothing";
}

// A Llama of 2 layers: projections of 2 x 64 x (64 + 32) and 3 x 64 x 128 numbers each.
constexpr double kLinear = 2 * (2 * 64 * (64 + 32) + 3 * 64 * 128);
constexpr const char* kLlama = R"({"hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "vocab_size": 1000, "num_attention_heads": 4,
    "num_key_value_heads": 2})";

TEST(MemoryPlan, MicroBatchesThatShareFp8CodesKeepTwoBytesOfALinearLayersWeight) {
  MemoryRequest request = Of(0, Kind::kBFloat16, 0);
  request.model = *ModelShapeFrom(*ParseJson(kLlama, "model"));
  EXPECT_EQ(request.model.parameters, 2 * 1000 * 64 + kLinear + 5 * 64);
  const double plain = PlanMemory(request).total();
  EXPECT_EQ(PlanMemory(request).codes, 0);
  request.keeps_codes = true;
  for (const int stage : {0, 1, 2, 3}) {
    request.zero_stage = stage;
    EXPECT_EQ(PlanMemory(request).codes, stage < 3 ? 2 * kLinear : 0) << "stage " << stage;
  }
  request.zero_stage = 0;
  EXPECT_EQ(PlanMemory(request).total(), plain + 2 * kLinear);
  request.training = false;
  EXPECT_EQ(PlanMemory(request).codes, 0);
}

TEST(MemoryPlan, CodesAreKeptInFp8WithSeveralMicroBatchesAStep) {
  const auto keeps = [](const std::vector<std::string>& settings) {
    return ReadFrom(settings).keeps_codes;
  };
  EXPECT_TRUE(keeps({"bf16.enabled=true", "fp8.enabled=true", "train_batch_size=4",
                     "gradient_accumulation_steps=4"}));
  EXPECT_FALSE(keeps({"bf16.enabled=true", "fp8.enabled=true", "train_batch_size=1"}));
  EXPECT_FALSE(keeps({"bf16.enabled=true", "train_batch_size=4", "gradient_accumulation_steps=4"}));
}

TEST(MemoryPlan, EightyBillionParametersTakeTwentyThreeGpusOfEightyGigabytes) {
  EXPECT_EQ(SmallestWorld(Of(80e9, Kind::kBFloat16, 3), 80e9, 0.25), 23);
  MemoryRequest inference = Of(80e9, Kind::kBFloat16, 3);
  inference.training = false;
  EXPECT_EQ(SmallestWorld(inference, 80e9, 0.25), 3);
  EXPECT_EQ(SmallestWorld(Of(80e9, Kind::kBFloat16, 2), 80e9, 0.25), std::nullopt)
      << "160 GB of values on every rank";
}

MemoryRequest OfTwelveLayers() {
  MemoryRequest request;
  request.model = {.parameters = 1e6,
                   .hidden = 64,
                   .intermediate = 160,
                   .layers = 12,
                   .query_width = 64,
                   .kv_width = 64,
                   .vocabulary = 256};
  request.micro_batch = 2;
  request.sequence_length = 128;
  return request;
}

TEST(MemoryPlan, RecomputedLayersKeepTheirInputAndPartsOfLayersTheRest) {
  using Mode = ActivationCheckpointingConfig::Mode;
  // A token keeps 4 x 64 + 2 x 64 + 2 x 64 + 3 x 160 values in each layer, and 2 x 64 at the ends.
  // Dropped values are computed again for one layer at a time.
  const double layer = 992;
  const double input = 64;
  const double mlp = 64 + 3 * 160;
  const struct {
    Mode mode;
    int64_t every;
    double values;
  } ways[] = {{Mode::kNone, 1, 12 * layer},
              {Mode::kFull, 1, 12 * input + (layer - input)},
              {Mode::kFull, 4, 9 * layer + 3 * input + (layer - input)},
              {Mode::kFull, 5, 9 * layer + 3 * input + (layer - input)},
              {Mode::kSelective, 1, 12 * (layer - mlp) + mlp},
              {Mode::kSelective, 5, 12 * layer - 3 * mlp + mlp}};
  for (const auto& way : ways) {
    MemoryRequest request = OfTwelveLayers();
    request.recompute.mode = way.mode;
    request.recompute.every = way.every;
    EXPECT_EQ(PlanMemory(request).activations, 4.0 * 256 * (way.values + 2 * 64))
        << static_cast<int>(way.mode) << ", every " << way.every;
  }
}

TEST(MemoryPlan, ActivationsInAFarTierAreNotNearButForThoseOnTheirWay) {
  MemoryRequest request = OfTwelveLayers();
  request.recompute.mode = ActivationCheckpointingConfig::Mode::kFull;
  const MemoryPlan near = PlanMemory(request);
  EXPECT_EQ(near.far_activations, 0);
  request.recompute.tier = ActivationCheckpointingConfig::Tier::kFile;
  const MemoryPlan far = PlanMemory(request);
  const double input = 2 * 128 * 64 * 4;  // A layer's input.
  EXPECT_EQ(far.far_activations, (12 - 4) * input);
  EXPECT_EQ(far.activations, near.activations - (12 - 4) * input);
  EXPECT_EQ(far.total(), near.total() - (12 - 4) * input);
  request.recompute.tier = ActivationCheckpointingConfig::Tier::kMemory;
  EXPECT_EQ(PlanMemory(request).host, 0) << "the host is where it trains";
  request.states_on_host = true;
  EXPECT_EQ(PlanMemory(request).host, far.far_activations);
  request.recompute.mode = ActivationCheckpointingConfig::Mode::kNone;
  EXPECT_EQ(PlanMemory(request).far_activations, 0) << "nothing is recomputed";
}

TEST(MemoryPlan, AGpusOffloadedWeightsAreTheHostsUnlessInAFile) {
  MemoryRequest request = Of(64e6, Kind::kBFloat16, 3);
  request.world_size = 4;
  request.states_on_host = true;
  const MemoryPlan near = PlanMemory(request);
  EXPECT_EQ(near.host, 0);
  request.values_far = true;
  const MemoryPlan pinned = PlanMemory(request);
  EXPECT_EQ(pinned.host, near.values);
  EXPECT_EQ(pinned.total() - pinned.rounding, near.total() - near.rounding - near.values);
  EXPECT_EQ(pinned.rounding, near.rounding - (16 * 2097152 - 32e6)) << "16 granules hold 32 MB";
  request.values_in_file = true;
  EXPECT_EQ(PlanMemory(request).host, 0);
  EXPECT_EQ(PlanMemory(request).values, 0);
}

// Three quarters of 2^20 parameters are 3 MiB in fp32, which take two granules of 2 MiB.
TEST(MemoryPlan, AGpusBuffersTakeWholeGranulesOfItsMemory) {
  constexpr double kMiB = 1 << 20;
  constexpr double kElements = 0.75 * kMiB;
  MemoryRequest request = Of(kElements, Kind::kFloat32, 0, 2);
  EXPECT_EQ(PlanMemory(request).rounding, 0) << "a CPU's pages are small";
  request.states_on_host = true;
  const MemoryPlan plan = PlanMemory(request);
  EXPECT_EQ(plan.rounding, 2 * kMiB) << "weights and gradients";
  EXPECT_EQ(plan.total(), plan.states() + 2 * kMiB);
  request.training = false;
  EXPECT_EQ(PlanMemory(request).rounding, kMiB) << "weights alone";
  request.training = true;
  request.zero_stage = 2;
  request.bucket_elements = 786'432;
  EXPECT_EQ(PlanMemory(request).rounding, kMiB + 2 * kMiB)
      << "weights and both slots; a rank's 1.5 MiB of gradients are less than a granule";
  request.zero_stage = 3;
  request.world_size = 1;
  EXPECT_EQ(PlanMemory(request).rounding, 2 * kMiB + 2 * kMiB);
  request.values_far = true;
  EXPECT_EQ(PlanMemory(request).rounding, kMiB + 2 * kMiB) << "weights are the host's";
}

TEST(MemoryPlan, EachBucketThatIsCompressedOnAGpuLosesHalfAGranule) {
  constexpr double kMiB = 1 << 20;
  MemoryRequest request = Of(100 * 4 * kMiB, Kind::kFloat32, 1, 2);
  request.states_on_host = true;
  request.bucket_elements = 4 << 20;
  EXPECT_EQ(PlanMemory(request).rounding, 0) << "whole granules";
  request.compression = "powersgd";
  EXPECT_EQ(PlanMemory(request).rounding, 100 * kMiB);
  request.compression = "int8";  // 4 MiB of codes with a scale of 4 bytes for each 256 of them.
  EXPECT_EQ(PlanMemory(request).rounding, 100 * kMiB + 2 * (6 - 4.0 * 260 / 256) * kMiB);
  request.world_size = 1;
  EXPECT_EQ(PlanMemory(request).rounding, 0) << "one rank compresses nothing";
}

// A model that is little else than a table of 50,000 words, with 64 values each.
MemoryRequest LargeVocabulary(Kind precision, int64_t samples) {
  MemoryRequest request = Of(6.5e6, precision, 1, 2);
  request.model.largest_gradient = 50'000.0 * 64;
  request.model.hidden = 64;
  request.model.vocabulary = 50'000;
  request.micro_batch = samples;
  request.sequence_length = 128;
  return request;
}

TEST(MemoryPlan, TheLossTakesAChunksLogitsAndGradientsHoweverManyTokens) {
  constexpr double kTable = 50'000.0 * 64;
  const auto logits = [](const MemoryRequest& request) { return PlanMemory(request).logits; };
  // 16 Mi logits are 335 tokens: 1,024 go in 4 chunks, and what grows is their input's gradient.
  const double chunk = 256.0 * 50'000;
  EXPECT_EQ(logits(LargeVocabulary(Kind::kFloat32, 8)), 4 * chunk + 4 * 64 * 1024);
  EXPECT_EQ(logits(LargeVocabulary(Kind::kFloat32, 32)), 4 * 316.0 * 50'000 + 4 * 64 * 4096)
      << "13 chunks, of which the longest has 316 tokens";
  // bf16 sums in fp32 and rounds each chunk's product: one of both beside the gradient's own room.
  EXPECT_EQ(logits(LargeVocabulary(Kind::kBFloat16, 8)), 2 * chunk + 4 * kTable + 2 * 64 * 1024);
  EXPECT_EQ(logits(LargeVocabulary(Kind::kFloat16, 8)),
            (2 + 8) * chunk + 4 * kTable + 2 * 64 * 1024)
      << "fp16 goes through ATen";
  MemoryRequest gpu = LargeVocabulary(Kind::kBFloat16, 8);
  gpu.states_on_host = true;
  EXPECT_EQ(logits(gpu), 2 * 1024.0 * 50'000 + 4 * kTable - 2 * kTable + 2 * 64 * 1024)
      << "all tokens at once, and a product that adds to fp32 as it is";
}

TEST(MemoryPlan, ReplicasAreTwoSnapshotsOfARanksPart) {
  for (const int stage : {0, 3}) {
    MemoryRequest request = Of(12e6, Kind::kBFloat16, stage, 4);
    EXPECT_EQ(PlanMemory(request).replicas, 0);
    const double total = PlanMemory(request).total();
    request.replicas = true;
    EXPECT_DOUBLE_EQ(PlanMemory(request).replicas, 2 * (2 + 4 + 8) * 12e6 / 4);
    EXPECT_DOUBLE_EQ(PlanMemory(request).total(), total);
    request.world_size = 1;  // There is no other host.
    EXPECT_EQ(PlanMemory(request).replicas, 0);
  }
}

TEST(MemoryPlan, TheJournalKeepsTwoGradientsOfARanksPartAndAGpuOneMore) {
  MemoryRequest without = Of(12e6, Kind::kBFloat16, 0, 4);
  for (const bool on_gpu : {false, true}) {
    without.states_on_host = on_gpu;
    MemoryRequest with = without;
    with.journal_bytes = 2;
    EXPECT_DOUBLE_EQ(PlanMemory(with).journal, 2 * 6e6);
    EXPECT_DOUBLE_EQ(PlanMemory(with).total() - PlanMemory(without).total(), on_gpu ? 6e6 : 0);
  }
}

TEST(MemoryPlan, TheSmallestWorldFitsAndOneLessDoesNot) {
  for (const int stage : {1, 2, 3}) {
    for (const double memory : {1e9, 3e9, 7e9}) {
      MemoryRequest request = Of(150e6, Kind::kBFloat16, stage);
      request.bucket_elements = 1'000'000;
      const auto world = SmallestWorld(request, memory, 0.1);
      if (!world.has_value()) {
        continue;
      }
      request.world_size = *world;
      EXPECT_LE(PlanMemory(request).total() * 1.1, memory);
      if (*world > 1) {
        request.world_size = *world - 1;
        EXPECT_GT(PlanMemory(request).total() * 1.1, memory);
      }
    }
  }
}

TEST(ModelShape, CountsTheParametersOfALlama) {
  // Llama 3.2 1B as published: 1,235,814,400 with the head tied to the embedding.
  const auto shape = ModelShapeFrom({{"hidden_size", 2048},
                                     {"intermediate_size", 8192},
                                     {"num_hidden_layers", 16},
                                     {"vocab_size", 128256},
                                     {"num_attention_heads", 32},
                                     {"num_key_value_heads", 8},
                                     {"head_dim", 64},
                                     {"tie_word_embeddings", true}});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->parameters, 1235814400);
  EXPECT_EQ(shape->largest_gradient, 2048.0 * 128256);
}

// Published counts, tied and not; a plan takes from the tensors which weights stay whole.
TEST(ModelShape, ItsTensorsAreAllOfItsParameters) {
  Json llama = *ParseJson(R"({"hidden_size": 2048, "intermediate_size": 8192,
      "num_hidden_layers": 16, "vocab_size": 128256, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": true})",
                          "Llama 3.2 1B");
  const Json gpt2 = *ParseJson(R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12,
      "n_positions": 1024, "vocab_size": 50257})",
                               "GPT-2");
  const auto sums = [](const Json& model) {
    const auto shape = ModelShapeFrom(model);
    EXPECT_TRUE(shape.ok()) << shape.status();
    double sum = 0;
    for (const ModelShape::Tensors& same : shape->tensors) {
      sum += same.elements * static_cast<double>(same.count);
    }
    return std::pair(sum, shape->parameters);
  };
  EXPECT_EQ(sums(llama), std::pair(1235814400.0, 1235814400.0));
  llama["tie_word_embeddings"] = false;
  EXPECT_EQ(sums(llama).first, 1235814400.0 + 2048.0 * 128256);
  EXPECT_EQ(sums(gpt2), std::pair(124439808.0, 124439808.0));
}

// Each layer has both norms and two biases of the hidden size (six vectors), the biases of q, k and
// v together, and that of the MLP's wider side; the last norm comes on top.
TEST(ModelShape, TheSmallTensorsOfGpt2AreItsVectors) {
  const auto shape = ModelShapeFrom({{"model_type", "gpt2"},
                                     {"n_embd", 768},
                                     {"n_layer", 12},
                                     {"n_positions", 1024},
                                     {"vocab_size", 50257}});
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto whole = [&](int64_t most) {
    return PersistentElements(*shape, {.parameter_max = most, .model_max = INT64_MAX});
  };
  EXPECT_EQ(whole(768), (12 * 6 + 2) * 768.0);
  EXPECT_EQ(whole(3 * 768), (12 * 6 + 2) * 768.0 + 12 * 3 * 768.0);
  EXPECT_EQ(whole(4 * 768), (12 * 6 + 2) * 768.0 + 12 * 7 * 768.0);
  EXPECT_EQ(whole(768 * 1024 - 1) - whole(768 * 768), 0);
  EXPECT_EQ(whole(768 * 1024) - whole(768 * 768), 768.0 * 1024);
  EXPECT_EQ(whole(768 * 768) - whole(768 * 768 - 1), 12 * 768.0 * 768);
}

TEST(ModelShape, TheLargestGradientIsOfWhatOneNodeGivesAtOnce) {
  Json llama = {{"hidden_size", 64}, {"intermediate_size", 160},   {"num_hidden_layers", 2},
                {"vocab_size", 256}, {"num_attention_heads", 4},   {"num_key_value_heads", 2},
                {"head_dim", 16},    {"tie_word_embeddings", true}};
  EXPECT_EQ(ModelShapeFrom(llama)->largest_gradient, 64.0 * 2 * 160) << "gate and up";
  llama["intermediate_size"] = 60;
  llama["vocab_size"] = 100;
  EXPECT_EQ(ModelShapeFrom(llama)->largest_gradient, 64.0 * (64 + 2 * 32)) << "q, k and v";
  Json gpt2 = {{"model_type", "gpt2"},
               {"n_embd", 64},
               {"n_layer", 2},
               {"n_positions", 128},
               {"vocab_size", 256}};
  EXPECT_EQ(ModelShapeFrom(gpt2)->largest_gradient, 64.0 * 2 * 256) << "up and down";
  gpt2["n_inner"] = 64;
  EXPECT_EQ(ModelShapeFrom(gpt2)->largest_gradient, 64.0 * 256) << "the table";
}

TEST(ModelShape, NamesWhatIsMissing) {
  const auto shape = ModelShapeFrom({{"hidden_size", 8}, {"intermediate_size", -1}});
  EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.status().message()), HasSubstr("intermediate_size"));
}

TEST(ParseBytes, TakesUnitsAndRefusesTheRest) {
  EXPECT_EQ(*ParseBytes("80GB"), 80e9);
  EXPECT_EQ(*ParseBytes("24 GiB"), 24.0 * (1 << 30));
  EXPECT_EQ(*ParseBytes("1.5tb"), 1.5e12);
  EXPECT_EQ(*ParseBytes("3MB"), 3e6);
  EXPECT_EQ(*ParseBytes("3MiB"), 3.0 * (1 << 20));
  EXPECT_EQ(*ParseBytes("2TiB"), 2.0 * (1LL << 40));
  for (const char* const bad : {"", "80", "GB", "-1GB", "80 GBit", "nan GB", "inf GB"}) {
    EXPECT_EQ(ParseBytes(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace dtrain::plan::memory_plan_test
