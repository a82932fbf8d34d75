// Tests of what a rank reads of masked files and of mixtures, on any number of ranks and after a
// resume.
#include "dtrain/token_loader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/data/token_sampler.h"
#include "runtime/plan/data/tokenizer_files.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::token_loader_test {
namespace {

using testing::RankContext;

constexpr int64_t kRow = 4;

void Write(const std::string& path, const std::vector<uint16_t>& tokens) {
  std::ofstream(path, std::ios::binary)
      << plan::MakeTokenHeader(static_cast<int64_t>(tokens.size()), 100)
      << std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
}

void WriteMask(const std::string& path, const std::vector<uint8_t>& bits) {
  std::ofstream(plan::MaskPath(path), std::ios::binary)
      << plan::MakeMaskHeader({static_cast<int64_t>(bits.size()), kRow, 0})
      << std::string(bits.begin(), bits.end());
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const std::string& train, int accumulation = 1,
                                             int micro_batch = 2, int64_t sequence = kRow) {
  return testing::MakeChainJob(
      context, folder,
      {.stage = 0,
       .accumulation = accumulation,
       .more = {absl::StrCat("train_micro_batch_size_per_gpu=", micro_batch),
                absl::StrCat("data.sequence_length=", sequence),
                absl::StrCat("data.train=", train)}});
}

std::vector<int64_t> Row(const at::Tensor& rows, int64_t row) {
  const at::Tensor one = rows.select(0, row).contiguous();
  const auto* const begin = one.const_data_ptr<int64_t>();
  return {begin, begin + one.numel()};
}

// Runs `body` on `size` ranks, which are processes; each must end well.
void OnRanks(int size, const testing::RankBody& body) {
  for (const auto& result : testing::RunRanks({.size = size}, [&](RankContext& context) {
         at::set_num_threads(1);
         return body(context);
       })) {
    EXPECT_TRUE(result.status.ok()) << size << " ranks: " << result.status;
  }
}

absl::Status ExpectEqual(const std::vector<int64_t>& value, const std::vector<int64_t>& expected,
                         const std::string& what) {
  return value == expected
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(what, ": ", absl::StrJoin(value, " "),
                                                " in place of ", absl::StrJoin(expected, " ")));
}

absl::Status ExpectRefused(const absl::Status& status, const std::string& says) {
  return !status.ok() && absl::StrContains(status.message(), says)
             ? absl::OkStatus()
             : absl::InternalError(
                   absl::StrCat("not refused by \"", says, "\": ", std::string(status.message())));
}

class TokenLoaderTest : public ::testing::Test {
 protected:
  std::string folder_ = ::testing::TempDir();
};

TEST_F(TokenLoaderTest, AMaskLeavesTargetsOutAndKeepsSamplesApart) {
  const std::string path = folder_ + "/masked.bin";
  // Two rows: two samples of two tokens, then a sample of three and padding.
  Write(path, {1, 2, 3, 4, 5, 6, 7, 99, 99});
  WriteMask(path, {2, 1, 2, 1, 2, 0, 1, 2, 2});
  OnRanks(1, [&](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto job,
                        MakeJob(&context, folder_, absl::StrCat("[\"", path, "\"]")));
    DT_ASSIGN_OR_RETURN(const auto loader, TokenLoader::Open(*job, Split::kTrain));
    DT_ASSIGN_OR_RETURN(const Batch batch, loader->Next());
    const int64_t first = Row(batch.tokens, 0)[0] == 1 ? 0 : 1;  // The order is shuffled.
    constexpr int64_t kNone = kIgnoredTarget;
    DT_RETURN_IF_ERROR(ExpectEqual(Row(batch.tokens, first), {1, 2, 3, 4}, "tokens"));
    DT_RETURN_IF_ERROR(ExpectEqual(Row(batch.targets, first), {2, kNone, 4, kNone}, "targets"));
    DT_RETURN_IF_ERROR(ExpectEqual(Row(batch.positions, first), {0, 1, 0, 1}, "positions"));
    DT_RETURN_IF_ERROR(
        ExpectEqual(Row(batch.targets, 1 - first), {kNone, 7, kNone, kNone}, "targets of row 1"));
    DT_RETURN_IF_ERROR(
        ExpectEqual(Row(batch.positions, 1 - first), {0, 1, 2, 0}, "positions of row 1"));
    return ExpectEqual({batch.targets_counted, static_cast<int64_t>(batch.document_lengths.size())},
                       {3, 4}, "targets and documents");
  });
}

TEST_F(TokenLoaderTest, RowsOfAnotherLengthAreRefused) {
  const std::string path = folder_ + "/rows.bin";
  Write(path, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  WriteMask(path, {2, 1, 1, 1, 2, 1, 1, 1, 2});
  OnRanks(1, [&](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto job,
                        MakeJob(&context, folder_, absl::StrCat("[\"", path, "\"]"), 1, 1, 8));
    return ExpectRefused(TokenLoader::Open(*job, Split::kTrain).status(),
                         "rows of 4 tokens, but data.sequence_length is 8");
  });
}

constexpr int64_t kGlobalBatch = 8;
constexpr int64_t kMicroBatch = 2;
constexpr int64_t kWindows = 50;      // The large part's; window i of both holds one number.
constexpr int64_t kSmallWindows = 5;  // The small part's, whose numbers follow.

// Reads some steps and a resume between them; each sample must be the sampler's.
absl::Status ReadMixture(RankContext& context, const std::string& folder,
                         const std::string& train) {
  const int64_t accumulation = kGlobalBatch / (kMicroBatch * context.size);
  DT_ASSIGN_OR_RETURN(const auto job,
                      MakeJob(&context, folder, train, static_cast<int>(accumulation)));
  const std::vector<plan::SamplerPart> parts = {{{kWindows * kRow + 1}, 3},
                                                {{kSmallWindows * kRow + 1}, 1}};
  DT_ASSIGN_OR_RETURN(const auto sampler,
                      plan::TokenSampler::Create(parts, {.sequence_length = kRow,
                                                         .global_batch = kGlobalBatch,
                                                         .seed = job->config().seed()}));
  DT_ASSIGN_OR_RETURN(auto loader, TokenLoader::Open(*job, Split::kTrain));
  for (int64_t step = 0; step < 6; ++step) {
    if (step == 3) {  // Another loader goes on where this one stood.
      const Json state = loader->SaveState();
      DT_ASSIGN_OR_RETURN(loader, TokenLoader::Open(*job, Split::kTrain));
      DT_RETURN_IF_ERROR(loader->RestoreState(state));
    }
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      DT_ASSIGN_OR_RETURN(const Batch batch, loader->Next());
      for (int64_t row = 0; row < kMicroBatch; ++row) {
        const int64_t position = (micro * context.size + context.rank) * kMicroBatch + row;
        const plan::SampleLocation at = sampler.At(step, position);
        const int64_t number = at.file * kWindows + at.offset / kRow;
        DT_RETURN_IF_ERROR(ExpectEqual(Row(batch.tokens, row), {number, number, number, number},
                                       absl::StrCat("step ", step, ", sample ", position)));
      }
      if (batch.positions.defined()) {
        return absl::InternalError("positions, though no file has a mask");
      }
    }
  }
  return absl::OkStatus();
}

TEST_F(TokenLoaderTest, AMixtureIsTheSameOnAnyNumberOfRanksAndAfterAResume) {
  const auto write = [&](const char* name, int64_t begin, int64_t windows) {
    std::vector<uint16_t> tokens;
    for (int64_t i = begin; i < begin + windows; ++i) {
      tokens.insert(tokens.end(), kRow, static_cast<uint16_t>(i));
    }
    tokens.push_back(0);
    Write(folder_ + name, tokens);
  };
  write("/large.bin", 0, kWindows);
  write("/small.bin", kWindows, kSmallWindows);
  const std::string train =
      absl::StrCat("[{\"files\": \"", folder_, "/large.bin\", \"weight\": 3}, {\"files\": \"",
                   folder_, "/small.bin\", \"weight\": 1}]");
  for (const int size : {1, 2, 4}) {
    OnRanks(size, [&](RankContext& context) { return ReadMixture(context, folder_, train); });
  }
}

TEST_F(TokenLoaderTest, OtherWeightsDoNotContinueARun) {
  Write(folder_ + "/p.bin", std::vector<uint16_t>(41, 1));
  Write(folder_ + "/q.bin", std::vector<uint16_t>(41, 2));
  OnRanks(1, [&](RankContext& context) -> absl::Status {
    const auto train = [&](int weight) {
      return absl::StrCat("[{\"files\": \"", folder_, "/p.bin\"}, {\"files\": \"", folder_,
                          "/q.bin\", \"weight\": ", weight, "}]");
    };
    DT_ASSIGN_OR_RETURN(const auto first_job, MakeJob(nullptr, folder_, train(1)));
    DT_ASSIGN_OR_RETURN(const auto first, TokenLoader::Open(*first_job, Split::kTrain));
    const Json saved = first->SaveState();
    DT_ASSIGN_OR_RETURN(const auto job, MakeJob(&context, folder_, train(3)));
    DT_ASSIGN_OR_RETURN(const auto loader, TokenLoader::Open(*job, Split::kTrain));
    return ExpectRefused(loader->RestoreState(saved), "shares of the parts of data.train");
  });
}

TEST_F(TokenLoaderTest, TheTokenizerIsThatOfTheFirstCorpusThatKeepsOne) {
  const std::vector<std::string> corpora = {folder_ + "/without", folder_ + "/kept",
                                            folder_ + "/later"};
  for (const std::string& corpus : corpora) {
    std::filesystem::create_directories(corpus);
    Write(corpus + "/train.bin", {1, 2, 3, 4, 5, 6});
  }
  ASSERT_TRUE(plan::WriteCorpusTokenizer(corpora[1], {{"tokenizer.json", "{1}"}}).ok());
  ASSERT_TRUE(plan::WriteCorpusTokenizer(corpora[2], {{"tokenizer.json", "{2}"}}).ok());
  const std::string train =
      absl::StrFormat(R"([{"files": ["%s/train.bin", "%s/train.bin"], "weight": 1},
                          {"files": ["%s/train.bin"], "weight": 1}])",
                      corpora[0], corpora[1], corpora[2]);
  OnRanks(1, [&](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto job, MakeJob(&context, folder_, train));
    DT_ASSIGN_OR_RETURN(const auto files, ReadCorpusTokenizer(*job));
    const std::vector<std::pair<std::string, std::string>> expected = {{"tokenizer.json", "{1}"}};
    return files == expected ? absl::OkStatus() : absl::InternalError("another tokenizer");
  });
}

TEST_F(TokenLoaderTest, RanksWithOtherTokensAreNamed) {
  for (int host = 0; host < 2; ++host) {  // Copies on two hosts, of which one is older.
    Write(absl::StrCat(folder_, "/host-", host, ".bin"),
          std::vector<uint16_t>(20, static_cast<uint16_t>(host)));
  }
  OnRanks(2, [&](RankContext& context) -> absl::Status {
    const std::string mine = absl::StrCat(folder_, "/rank-", context.rank);
    std::filesystem::create_directories(mine);
    std::filesystem::copy_file(absl::StrCat(folder_, "/host-", context.rank, ".bin"),
                               mine + "/train.bin",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::current_path(mine);  // So that both are configured alike.
    DT_ASSIGN_OR_RETURN(const auto job, MakeJob(&context, folder_, "[\"train.bin\"]"));
    return ExpectRefused(TokenLoader::Open(*job, Split::kTrain).status(),
                         "data.train has other tokens on rank 1");
  });
}

}  // namespace
}  // namespace dtrain::token_loader_test
