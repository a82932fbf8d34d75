// The messages of a save: what a rank writes another reads back, up to the bounds, and anything
// else is refused by the name of what is wrong.
#include "checkpoint/commit/save_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <limits>

#include "absl/strings/str_replace.h"
#include "base/device_error.h"
#include "base/status.h"

namespace dtrain::checkpoint::save_messages_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SaveMessagesTest, AProposalIsReadBack) {
  for (const StepId& id : {StepId{1, 0}, StepId{kEpochMax, kStepMax}}) {
    const auto read = ParseProposal(
        Encode(SaveProposal{id, 7, absl::DataLossError("the weights are \"gone\"\n")}));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->id, id);
    EXPECT_EQ(read->model_shards, 7);
    EXPECT_EQ(read->status, absl::DataLossError("the weights are \"gone\"\n"));
  }
  const auto none = ParseProposal(Encode(SaveProposal{{1, 1}, 0, absl::OkStatus()}));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->model_shards, 0);
  EXPECT_TRUE(none->status.ok());
}

TEST(SaveMessagesTest, APlanIsReadBackWithEachOutcome) {
  for (int outcome = 0; outcome <= 4; ++outcome) {
    SavePlan plan;
    plan.go = outcome == 0;
    plan.outcome = outcome;
    plan.status = outcome == 0 ? absl::OkStatus() : absl::AbortedError("fenced");
    plan.first_shard = {1, 3, 4};
    plan.shard_count = 5;
    const auto read = ParsePlan(Encode(plan));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->go, plan.go);
    EXPECT_EQ(read->outcome, outcome);
    EXPECT_EQ(read->status, plan.status);
    EXPECT_THAT(read->first_shard, ElementsAre(1, 3, 4));
    EXPECT_EQ(read->shard_count, 5);
  }
}

RankReport Report() {
  RankReport report;
  report.rank_state = {{"rng", "ab"}};
  WrittenFile file;
  file.path = "model/model.safetensors";
  file.checksum.bytes = 24;
  file.checksum.xxh3_128 = std::string(32, 'a');
  file.checksum.crc32c = {0, 0xffffffffU};
  file.tensors = {{"w", "F32", {2, 3}, 0, 24}, {"s", "F32", {}, 24, 28}};
  report.files = {file};
  return report;
}

TEST(SaveMessagesTest, AReportIsReadBackWithItsFilesAndTensors) {
  const auto read = ParseReport(Encode(Report()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->status.ok());
  EXPECT_EQ(read->rank_state, Report().rank_state);
  ASSERT_EQ(read->files.size(), 1U);
  const WrittenFile& file = read->files[0];
  EXPECT_EQ(file.path, "model/model.safetensors");
  EXPECT_EQ(file.checksum, Report().files[0].checksum);
  ASSERT_EQ(file.tensors.size(), 2U);
  EXPECT_EQ(file.tensors[0].name, "w");
  EXPECT_EQ(file.tensors[0].dtype, "F32");
  EXPECT_THAT(file.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(file.tensors[0].begin, 0U);
  EXPECT_EQ(file.tensors[0].end, 24U);
  EXPECT_THAT(file.tensors[1].shape, ElementsAre());
}

TEST(SaveMessagesTest, AVerdictIsReadBackWithEachOutcome) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  for (int outcome = 0; outcome <= 4; ++outcome) {
    for (const uint64_t bytes : {uint64_t{0}, kMost}) {
      const auto read =
          ParseVerdict(Encode(SaveVerdict{outcome, absl::UnavailableError("lost"), bytes}));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->outcome, outcome);
      EXPECT_EQ(read->bytes, bytes);
      EXPECT_EQ(read->status, absl::UnavailableError("lost"));
    }
  }
}

// A rank that ends with the error of another one's disk must not look like a victim of that rank,
// because the launcher would then not know that a host has failed.
TEST(SaveMessagesTest, AnErrorOfADeviceStaysOne) {
  const absl::Status failed = ErrnoStatus(EIO, "cannot write a.safetensors");
  ASSERT_TRUE(IsDeviceError(failed));
  EXPECT_EQ(ParseProposal(Encode(SaveProposal{{1, 1}, 0, failed}))->status, failed);
  EXPECT_EQ(ParsePlan(Encode(SavePlan{.outcome = 2, .status = failed}))->status, failed);
  EXPECT_EQ(ParseReport(Encode(RankReport{.status = failed}))->status, failed);
  EXPECT_EQ(ParseVerdict(Encode(SaveVerdict{2, failed, 0}))->status, failed);
  const absl::Status lost = absl::UnavailableError("rank 1 is lost");
  EXPECT_FALSE(IsDeviceError(ParseVerdict(Encode(SaveVerdict{2, lost, 0}))->status));
}

// `text` with `from` replaced; it must have been there.
std::string Changed(const std::string& text, const std::string& from, const std::string& to) {
  EXPECT_THAT(text, HasSubstr(from));
  return absl::StrReplaceAll(text, {{from, to}});
}

TEST(SaveMessagesTest, AnythingElseIsRefusedByName) {
  struct Case {
    std::string from;
    std::string to;
    std::string message;
  };
  const std::string proposal = Encode(SaveProposal{{3, 5}, 7, absl::OkStatus()});
  for (const Case& test :
       {Case{"\"epoch\":3", "\"epoch\":0", "\"epoch\" is 0"},
        Case{"\"step\":5", "\"step\":-1", "\"step\" is -1"},
        Case{"\"model_shards\":7", "\"model_shards\":-1", "\"model_shards\" is -1"},
        Case{"\"code\":0", "\"code\":17", "\"code\" is 17"},
        Case{"\"device\"", "\"disk\"", "\"device\" is missing"},
        Case{"\"status\"", "\"state\"", "\"status\" is missing"},
        Case{"\"message\":\"\"", "\"message\":4", "\"message\" must be a string"},
        Case{"}}", "}", "save message"}}) {
    const auto read = ParseProposal(Changed(proposal, test.from, test.to));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(test.message)) << test.to;
  }
  SavePlan plan;
  plan.first_shard = {1};
  for (const Case& test :
       {Case{"\"outcome\":0", "\"outcome\":5", "\"outcome\" is 5"},
        Case{"\"outcome\":0", "\"outcome\":-1", "\"outcome\" is -1"},
        Case{"\"first_shard\":[1]", "\"first_shard\":1", "must be an array"},
        Case{"\"shard_count\":0", "\"shard_count\":-1", "\"shard_count\" is -1"}}) {
    const auto read = ParsePlan(Changed(Encode(plan), test.from, test.to));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(test.message)) << test.to;
  }
  const std::string report = Encode(Report());
  const char* const tensor = "a tensor must be [name, dtype, shape, begin, end]";
  for (const Case& test :
       {Case{"[\"w\",\"F32\",[2,3],0,24]", "[\"w\",\"F32\",[2,3],0]", tensor},
        Case{"[\"w\",\"F32\",[2,3],0,24]", "[1,\"F32\",[2,3],0,24]", tensor},
        Case{"[\"w\",\"F32\",[2,3],0,24]", "[\"w\",1,[2,3],0,24]", tensor},
        Case{"[\"w\",\"F32\",[2,3],0,24]", "\"w\"", tensor}, Case{"[2,3]", "[2,-3]", "shape: -3"},
        Case{"[2,3],0,24", "[2,3],-1,24", "offsets: -1"},
        Case{"\"bytes\":24", "\"bytes\":-1", "\"bytes\" is -1"},
        Case{"\"rank_state\":{\"rng\":\"ab\"}", "\"rank_state\":[]", "rank_state"},
        Case{"\"files\":[{", "\"files\":[7,{", "must be an object"}}) {
    const auto read = ParseReport(Changed(report, test.from, test.to));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(test.message)) << test.to;
  }
  const std::string verdict = Encode(SaveVerdict{2, absl::OkStatus(), 9});
  for (const Case& test : {Case{"\"outcome\":2", "\"outcome\":5", "\"outcome\" is 5"},
                           Case{"\"outcome\":2", "\"outcome\":-1", "\"outcome\" is -1"},
                           Case{"\"bytes\":9", "\"bytes\":-1", "\"bytes\" is -1"},
                           Case{"\"status\"", "\"state\"", "\"status\" is missing"}}) {
    const auto read = ParseVerdict(Changed(verdict, test.from, test.to));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(test.message)) << test.to;
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::save_messages_test
