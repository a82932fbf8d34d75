// Seeded fuzz drivers of the room's parsers: any input ends in a value or in a one-line error of an
// expected code, never in a crash (ASan and UBSan run them too). DTRAIN_FUZZ_SEED and
// DTRAIN_FUZZ_ROUNDS repeat or lengthen a run.
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "dtrain/config.h"
#include "gtest/gtest.h"
#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_sampler.h"
#include "tests/fuzz/mutate.h"

namespace dtrain::plan::fuzz_test {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

void ExpectOneLine(const absl::Status& status) {
  if (status.ok()) {
    return;
  }
  EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument ||
              status.code() == absl::StatusCode::kUnimplemented ||
              status.code() == absl::StatusCode::kFailedPrecondition)
      << status;
  EXPECT_FALSE(status.message().empty());
  EXPECT_LT(status.message().size(), 4000u) << status;
}

class FuzzTest : public ::testing::Test {
 protected:
  FuzzTest() : trace_(__FILE__, __LINE__, absl::StrCat("DTRAIN_FUZZ_SEED=", seed_)) {}
  const uint64_t seed_ = FromEnvironment("DTRAIN_FUZZ_SEED", 20261121);
  const uint64_t rounds_ = FromEnvironment("DTRAIN_FUZZ_ROUNDS", 3000);
  SplitMix64 random_{seed_};
  ::testing::ScopedTrace trace_;
};

constexpr const char* kConfig = R"({ // comment
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "train_steps": 300, "seed": 7,
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": "auto"}},
  "zero_optimization": {"stage": 0, "reduce_bucket_size": 5e8},
  "data": {"train": ["a.bin"], "sequence_length": 256}, "model": {"layers": {"a": [1, 2]}}})";

TEST_F(FuzzTest, ConfigurationText) {
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < rounds_; ++i) {
    const std::string text = MutatedSeed({kConfig}, random_);
    const absl::StatusOr<Config> config = Config::Parse(text, "f.json", {}, 2);
    ExpectOneLine(config.status());
    if (config.ok()) {  // An accepted configuration can be read back.
      ++accepted;
      const Json in_force = config->values_in_force();
      const absl::StatusOr<Config> again = Config::Parse(DumpJson(in_force), "again.json", {}, 2);
      ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
      EXPECT_EQ(
          config->global_batch(),
          config->micro_batch() * config->gradient_accumulation_steps() * config->world_size());
    }
  }
  EXPECT_GT(accepted, rounds_ / 100);
  EXPECT_LT(accepted, rounds_);
}

TEST_F(FuzzTest, ConfigurationTreeOfKnownKeys) {
  static const char* const kValues[] = {"null", "true",      "false",     "0",        "1",
                                        "-1",   "0.5",       "1e300",     "\"auto\"", "\"x\"",
                                        "[]",   "[0.5,0.5]", "[1,\"a\"]", "{}",       "2147483648"};
  for (uint64_t i = 0; i < rounds_; ++i) {
    std::vector<std::string> overrides{"train_batch_size=8"};
    for (uint64_t k = 0; k <= random_.Below(4); ++k) {
      const ConfigKey& key = ConfigKeys()[random_.Below(ConfigKeys().size())];
      overrides.push_back(absl::StrCat(key.path, "=", kValues[random_.Below(std::size(kValues))]));
    }
    ExpectOneLine(Config::Parse("{}", "f.json", overrides, 2).status());
  }
}

TEST_F(FuzzTest, Overrides) {
  for (uint64_t i = 0; i < rounds_; ++i) {
    const std::string assignment = MutatedSeed({"model.layers.a=[1, {\"b\": 2}]"}, random_);
    ExpectOneLine(Config::Parse(kConfig, "f.json", {assignment}, 2).status());
  }
}

TEST_F(FuzzTest, TokenHeader) {
  const int32_t words[] = {0, 1, 2, 7, -1, 20240520, 20240801, 2147483647, 256};
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < 20 * rounds_; ++i) {
    std::string head(random_.Below(8) == 0 ? random_.Below(1030) : 1024 + random_.Below(8), '\0');
    const int32_t chosen[] = {
        words[random_.Below(std::size(words))], words[random_.Below(std::size(words))],
        words[random_.Below(std::size(words))], static_cast<int32_t>(random_.Next())};
    std::memcpy(head.data(), chosen, std::min(head.size(), sizeof(chosen)));
    const auto bytes = random_.Below(2) == 0
                           ? static_cast<int64_t>(head.size())
                           : 1024 + int64_t{chosen[2]} * (random_.Below(2) == 0 ? 2 : 4);
    for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kNanoGptU16}) {
      if (bytes < 0 || (bytes < 1024 && bytes != static_cast<int64_t>(head.size()))) {
        continue;
      }
      const absl::StatusOr<TokenHeader> header = ParseTokenHeader(head, bytes, "f", format);
      ExpectOneLine(header.status());
      if (header.ok()) {
        ++accepted;
        EXPECT_GE(header->tokens, 0);
        EXPECT_EQ(header->data_offset + header->tokens * header->bytes_per_token, bytes);
      }
    }
  }
  EXPECT_GT(accepted, 0u);
}

TEST_F(FuzzTest, Cursor) {
  const TokenSampler sampler = *TokenSampler::Create(
      {10001}, {.sequence_length = 8, .global_batch = 4, .seed = 3}, {{1, 2}});
  const std::string cursor_text = DumpJson(sampler.CursorAt(5).ToJson());
  for (uint64_t i = 0; i < rounds_; ++i) {
    if (const auto json = ParseJson(MutatedSeed({cursor_text}, random_), "c"); json.ok()) {
      const absl::StatusOr<DataCursor> cursor = DataCursor::FromJson(*json);
      ExpectOneLine(cursor.status());
      if (cursor.ok() && sampler.CheckCursor(*cursor).ok()) {
        EXPECT_GE(sampler.At(cursor->step, 0).file, 0);
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::plan::fuzz_test
