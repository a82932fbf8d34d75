// The manifest and the epochs' records: written values are read back; everything else is refused
// with the field's name.
#include "checkpoint/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/format/manifest_seal.h"

namespace dtrain::checkpoint::manifest_test {
namespace {

using ::testing::HasSubstr;

Manifest Example() {
  Manifest manifest;
  manifest.job = "run \"7\"";
  manifest.id = {3, 1200};
  manifest.parent = StepId{2, 1000};
  manifest.nonce = "0011223344556677";
  manifest.world_size = 1;
  manifest.created_unix_ms = 1'764'000'000'123;
  manifest.state.zero_stage = 2;
  manifest.state.layout_hash = "cafe";
  manifest.state.engine = {{"lr", 0.1}, {"scale", 65536.0}, {"big", 18446744073709551615ULL}};
  manifest.state.data = {{"sample", 77}};
  manifest.state.skip = {{1, 2}, {5, 9}};
  manifest.rank_state = {Json{{"rng", "ab"}}};
  FileChecksum checksum;
  checksum.bytes = kBlockBytes + 5;
  checksum.xxh3_128 = std::string(32, 'a');
  checksum.crc32c = {0x01020304U, 0xffffffffU};
  manifest.files = {{"model/model.safetensors", checksum}, {StatePath(0, 1), checksum}};
  manifest.tensors = {{0, {"w", "F32", {2, 3}, 0, 24}}, {1, {"w", "U8", {5}, 0, 5}}};
  return manifest;
}

// The example's text with `from` replaced and the seal renewed, as a careful forger would.
std::string Forged(const std::string& from, const std::string& to) {
  std::string text = EncodeManifest(Example());
  EXPECT_THAT(text, HasSubstr(from));
  text = absl::StrReplaceAll(text, {{from, to}});
  return SealManifest(text.substr(0, text.rfind(" \"self_hash\"")));
}

TEST(ManifestTest, WhatIsWrittenIsReadBack) {
  const Manifest manifest = Example();
  const std::string text = EncodeManifest(manifest);
  const auto parsed = ParseManifest(text, "M");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(EncodeManifest(*parsed), text);
  EXPECT_EQ(parsed->id, manifest.id);
  EXPECT_EQ(parsed->parent, manifest.parent);
  EXPECT_EQ(parsed->state.skip, manifest.state.skip);
  EXPECT_EQ(parsed->state.engine, manifest.state.engine);
  EXPECT_EQ(parsed->files[1].checksum, manifest.files[1].checksum);
  EXPECT_EQ(parsed->tensors[1].entry.name, "w");
}

TEST(ManifestTest, EveryFlippedBitAndEveryCutIsRefused) {
  const std::string text = EncodeManifest(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    ASSERT_FALSE(ParseManifest(damaged, "M").ok()) << i;
    ASSERT_FALSE(ParseManifest(text.substr(0, i), "M").ok()) << i;
  }
}

TEST(ManifestTest, AForgedManifestIsRefusedByField) {
  const struct {
    std::string from;
    std::string to;
    std::string message;
  } kCases[] = {
      {"\"dtrain-checkpoint\"", "\"other\"", "format is \"other\""},
      {"\"version\": 1", "\"version\": 2", "version 2 is not known"},
      {"\"version\": 1", "\"version\": 1,\n \"version\": 1", "appears twice"},
      {"\"epoch\": 3", "\"epoch\": 0", "\"epoch\" is 0"},
      {"\"step\": 1200", "\"step\": -1", "\"step\" is -1"},
      {"\"step\": 1200", "\"step\": 1e400", "1e400"},
      {"\"world_size\": 1", "\"world_size\": 2", "ranks has 1 elements"},
      {"\"zero_stage\": 2", "\"zero_stage\": 4", "zero_stage"},
      {"\"job\"", "\"jab\"", "\"job\" is missing"},
      {"\"nonce\": ", "\"extra\": 1,\n \"nonce\": ", "\"extra\" is not known"},
      {"model/model.safetensors", "model/../../x", "must be model/NAME"},
      {"model/model.safetensors", "../model.safetensors", "must be model/NAME"},
      {"model/model.safetensors", "/etc/passwd", "must be model/NAME"},
      {"model/model.safetensors", "model/.hidden", "must be model/NAME"},
      {"model/model.safetensors", "model/" + std::string(129, 'a'), "must be model/NAME"},
      {"state/rank-0-of-1.safetensors", "state/rank-1-of-1.safetensors", "is missing"},
      {"model/model.safetensors", "state/rank-0-of-1.safetensors", "listed twice"},
      {"01020304ffffffff", "01020304", "8 digits for each of 2 blocks"},
      {"01020304ffffffff", "0102030gffffffff", "hex digits"},
      {std::string(32, 'a'), std::string(31, 'a'), "hash of 32 hex digits"},
      {"\"bytes\":4194309", "\"bytes\":9223372036854775807", "blocks"},
      {"\"file\":1", "\"file\":2", "\"file\" is 2"},
      {"\"file\":1", "\"file\":0", "listed twice in model"},
      {"[2,3]", "[2,4]", "data_offsets do not fit"},
      {"[2,3]", "[4294967296,4294967296]", "ValidationOverflow"},
      {"[0,24]", "[24,0]", "data_offsets do not fit"},
      {"[0,24]", "[9000000000000000000,9000000000000000024]", "data_offsets do not fit"},
      {"\"F32\"", "\"F31\"", "unknown dtype"},
      {"\"step\":1000", "\"step\":1000,\"x\":1", "\"x\" is not known"},
      {"\"xxh3_128\"", "\"x\":1,\"xxh3_128\"", "\"x\" is not known"},
      {"\"file\":1", "\"file\":1,\"x\":1", "\"x\" is not known"},
      {"\"epoch\":2", "\"epoch\":0", "\"epoch\" is 0"},
      {"\"world_size\": 1", "\"world_size\": 0", "\"world_size\" is 0"},
      {"[[1,2],[5,9]]", "[[1,6],[5,9]]", "sorted and disjoint"},
      {"[[1,2],[5,9]]", "[[1,2],[9,9]]", "sorted and disjoint"},
      {"[[1,2],[5,9]]", "[7,[5,9]]", "skip_ranges must be an array of integers"},
      {"[[1,2],[5,9]]", "[[1,2.5],[5,9]]", "2.5 is no integer of at least 0"},
      {"[2,3]", "6", "\"shape\" must be an array"},
      {"{\"epoch\":2,\"step\":1000}", "7", "parent must be an object"},
      {"{\"rng\":\"ab\"}", "7", "ranks: each element must be an object"},
      {"{\"sample\":77}", "[]", "\"data\" must be an object"},
      {"{\"sample\":77}", std::string(70, '[') + std::string(70, ']'), "nested deeper"},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.message);
    const auto parsed = ParseManifest(Forged(test.from, test.to), "M");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(test.message));
  }
}

// The extreme values that each field may have.
TEST(ManifestTest, AManifestAtTheBoundsIsRead) {
  const struct {
    std::string from;
    std::string to;
  } kCases[] = {{"\"step\": 1200", "\"step\": 0"},
                {"\"step\": 1200", "\"step\": 999999999999"},
                {"\"epoch\": 3", "\"epoch\": 1"},
                {"\"zero_stage\": 2", "\"zero_stage\": 3"},
                {"\"zero_stage\": 2", "\"zero_stage\": 0"},
                {"[[1,2],[5,9]]", "[[1,5],[5,9]]"},
                {"[[1,2],[5,9]]", "[[0,1]]"},
                {"[[1,2],[5,9]]", "[]"},
                {"model/model.safetensors", "model/" + std::string(128, 'a')}};
  for (const auto& test : kCases) {
    const auto parsed = ParseManifest(Forged(test.from, test.to), "M");
    EXPECT_TRUE(parsed.ok()) << test.to << ": " << parsed.status();
  }
  for (const auto& [from, to] :
       {std::pair("\"step\": 1200", "\"step\": 1000000000000"),
        std::pair("\"zero_stage\": 2", "\"zero_stage\": -1"),
        std::pair("[[1,2],[5,9]]", "[[1,5],[4,9]]"), std::pair("[[1,2],[5,9]]", "[[1,2,3]]")}) {
    EXPECT_FALSE(ParseManifest(Forged(from, to), "M").ok()) << to;
  }
}

EpochRecord ExampleRecord() {
  EpochRecord record;
  record.job = "run \"7\"";
  record.epoch = 3;
  record.world_size = 2;
  record.resumed_from = StepId{2, 1000};
  record.nonce = "0011223344556677";
  return record;
}

TEST(EpochRecordTest, WhatIsWrittenIsReadBack) {
  for (const std::optional<StepId>& from :
       {std::optional(StepId{2, 1000}), std::optional<StepId>()}) {
    EpochRecord record = ExampleRecord();
    record.resumed_from = from;
    const auto parsed = ParseEpoch(EncodeEpoch(record), "E");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(EncodeEpoch(*parsed), EncodeEpoch(record));
    EXPECT_EQ(parsed->job, record.job);
    EXPECT_EQ(parsed->epoch, 3);
    EXPECT_EQ(parsed->world_size, 2);
    EXPECT_EQ(parsed->resumed_from, from);
  }
}

TEST(EpochRecordTest, AForgedRecordIsRefusedByField) {
  const struct {
    std::string from;
    std::string to;
    std::string message;  // "": it is read.
  } kCases[] = {{"\"version\": 1", "\"version\": 2", "\"version\" is 2"},
                {"\"job\"", "\"jab\"", "\"job\" is missing"},
                {"\"epoch\": 3", "\"epoch\": 0", "\"epoch\" is 0"},
                {"\"epoch\":2", "\"epoch\":3", "\"epoch\" is 3"},
                {"\"epoch\":2", "\"epoch\":1", ""},
                {"\"epoch\":2", "\"epoch\":0", "\"epoch\" is 0"},
                {"\"step\":1000", "\"step\":0", ""},
                {"\"step\":1000", "\"step\":-1", "\"step\" is -1"},
                {"\"step\":1000", "\"step\":1000,\"x\":1", "\"x\" is not known"},
                {"\"world_size\": 2", "\"world_size\": 0", "\"world_size\" is 0"},
                {"\"world_size\": 2", "\"world_size\": 1", ""},
                {"\"nonce\"", "\"x\": 1,\n \"nonce\"", "\"x\" is not known"},
                {"\"nonce\": \"0011223344556677\"", "\"nonce\": 7", "\"nonce\" must be a string"}};
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.to);
    std::string text = EncodeEpoch(ExampleRecord());
    ASSERT_THAT(text, HasSubstr(test.from));
    text = absl::StrReplaceAll(text, {{test.from, test.to}});
    const auto parsed = ParseEpoch(SealManifest(text.substr(0, text.rfind(" \"self_hash\""))), "E");
    EXPECT_EQ(parsed.ok(), test.message.empty()) << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(test.message));
    const char* const part = test.from == "\"epoch\":2" || test.from == "\"step\":1000"
                                 ? "E: resumed_from: "
                                 : "E: epoch record: ";
    EXPECT_TRUE(parsed.ok() || absl::StartsWith(parsed.status().message(), part))
        << parsed.status() << " does not say what it is of";
  }
}

TEST(ManifestTest, PlainNamesAreOneComponentWithoutALeadingDot) {
  for (const char* good : {"a", "config.json", "_x", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(IsPlainName(good)) << good;
  }
  for (const char* bad : {"", ".", "..", ".x", "-x", "a/b", "a b", "a\n", "caf\xc3\xa9"}) {
    EXPECT_FALSE(IsPlainName(bad)) << bad;
  }
}

TEST(StepIdTest, FolderNamesAreReadBackAndNothingElse) {
  EXPECT_EQ((StepId{3, 1200}).DirectoryName(), "step-000000001200.e3");
  EXPECT_EQ(StepId::FromDirectoryName("step-000000001200.e3"), (StepId{3, 1200}));
  for (const char* bad :
       {"", "step-1200.e3", "step-000000001200.e03", "step-000000001200.e0", "step-000000001200",
        "step-00000000120x.e3", "step-000000001200.e3x", "Step-000000001200.e3",
        "step--00000001200.e3", "step-000000001200.e999999999"}) {
    EXPECT_FALSE(StepId::FromDirectoryName(bad)) << bad;
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::manifest_test
