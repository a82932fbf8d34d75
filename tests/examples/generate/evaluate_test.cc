// The loss over rows is LibTorch's cross-entropy of the model's logits; each row counts once.
#include "generate/evaluate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "generate/eval_rows.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/plan/temp_folder.h"

namespace evaluate_test {
namespace {

using dtrain::plan::kMaskStart;
using dtrain::plan::kMaskTrained;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GivenRows final : public EvalRows {
 public:
  explicit GivenRows(std::deque<EvalRow> rows) : EvalRows(16), rows_(std::move(rows)) {}
  absl::StatusOr<std::optional<EvalRow>> Next() override {
    if (rows_.empty()) {
      return std::nullopt;
    }
    EvalRow row = std::move(rows_.front());
    rows_.pop_front();
    return row;
  }

 private:
  std::deque<EvalRow> rows_;
};

Gpt Model() {
  at::manual_seed(23);
  GptOptions options = SmallGpt(Architecture::kQwen2);
  options.initializer_range = 0.3;
  return Gpt(options);
}

std::vector<int64_t> Tokens(int64_t first, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back((first + 7 * i * i) % 61);
  }
  return tokens;
}

// The sum over the predictions of tokens[begin...] from those before in the row.
double LossOf(Gpt& model, const std::vector<int64_t>& tokens, size_t begin) {
  const at::NoGradGuard no_grad;
  model->eval();
  const at::Tensor row = at::tensor(tokens, at::kLong);
  const at::Tensor logits = model->forward(row.narrow(0, 0, row.numel() - 1).unsqueeze(0));
  const auto from = static_cast<int64_t>(begin) - 1;
  return at::cross_entropy_loss(logits.select(0, 0).slice(0, from), row.slice(0, from + 1), {},
                                at::Reduction::Sum)
      .item<double>();
}

absl::StatusOr<Evaluated> LossesOf(Gpt& model, std::deque<EvalRow> rows,
                                   const EvaluateOptions& options = {}) {
  GivenRows source(std::move(rows));
  return EvaluateRows(*model, source, options, [](const Evaluated&) {});
}

TEST(EvaluateRows, SumsOverAllRowsWhateverTheirLengthsAndTheBatch) {
  Gpt model = Model();
  std::deque<EvalRow> rows;
  double expected = 0;
  for (const int64_t length : {17, 17, 17, 5, 17}) {
    rows.push_back(EvalRow{Tokens(static_cast<int64_t>(rows.size()), length), {}});
    expected += LossOf(model, rows.back().tokens, 1);
  }
  for (const int64_t batch : {1, 2, 8}) {
    const auto result = LossesOf(model, rows, {.batch = batch});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->rows, 5);
    EXPECT_EQ(result->tokens, 68);
    EXPECT_NEAR(result->loss_sum, expected, 1e-5 * expected) << batch;
    EXPECT_DOUBLE_EQ(result->perplexity(), std::exp(result->loss_sum / 68));
  }
}

TEST(EvaluateRows, AMaskSaysWhatCountsAndWhereSamplesBegin) {
  Gpt model = Model();
  const std::vector<int64_t> first = Tokens(3, 6);
  const std::vector<int64_t> second = Tokens(9, 5);
  EvalRow row;
  row.tokens = first;
  row.tokens.insert(row.tokens.end(), second.begin(), second.end());
  row.mask.assign(11, 0);
  row.mask[0] = row.mask[6] = kMaskStart;
  for (const size_t trained : {4, 5, 8, 9, 10}) {
    row.mask[trained] = kMaskTrained;
  }
  const auto result = LossesOf(model, {row});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens, 5);
  const double expected = LossOf(model, first, 4) + LossOf(model, second, 2);
  EXPECT_NEAR(result->loss_sum, expected, 1e-5 * expected);
}

TEST(EvaluateRows, ADocumentTokenSeparatesTexts) {
  Gpt model = Model();
  std::vector<int64_t> first = Tokens(3, 6);
  first.back() = 0;
  const std::vector<int64_t> second = {5, 6, 7, 8};
  std::vector<int64_t> both = first;
  both.insert(both.end(), second.begin(), second.end());
  EvaluateOptions options;
  options.documents.token = 0;
  const auto result = LossesOf(model, {EvalRow{both, {}}}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens, 8) << "not the first token of the second document";
  const double expected = LossOf(model, first, 1) + LossOf(model, second, 1);
  EXPECT_NEAR(result->loss_sum, expected, 1e-5 * expected);
}

TEST(EvaluateRows, StopsBehindTheRowsThatWereAskedFor) {
  Gpt model = Model();
  const std::deque<EvalRow> rows(7, EvalRow{Tokens(1, 9), {}});
  EXPECT_EQ(LossesOf(model, rows, {.batch = 4, .rows_max = 5})->rows, 5);
}

TEST(EvaluateRows, RefusesDataInWhichNothingCounts) {
  Gpt model = Model();
  EXPECT_THAT(std::string(LossesOf(model, {}).status().message()),
              HasSubstr("no token to predict"));
}

// The loss of a part of a corpus is not that of the corpus: people are told what was not read.
TEST(OpenEvalRows, SaysWhichFilesOfAFolderAreLeftOut) {
  const dtrain::plan::TempFolder folder;
  folder.Write("a.txt", "one");
  folder.Write("b.dat", std::string("a\0b", 3));
  folder.Write("c.zip", "PK\x03\x04 of files");
  folder.Write("d.txt", std::string((1 << 20) + 1, 'd'));
  const auto tokenizer = dtrain::plan::MakeBytesTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EvalData data;
  data.paths = {folder.path()};
  data.positions = 16;
  data.vocabulary = 256;
  const auto rows = OpenEvalRows(data, **tokenizer);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto row = (*rows)->Next();
  ASSERT_TRUE(row.ok() && row->has_value()) << row.status();
  EXPECT_THAT((*row)->tokens, ElementsAre('o', 'n', 'e', 0));
  EXPECT_FALSE((*rows)->Next()->has_value());
  EXPECT_THAT((*rows)->LeftOut(),
              HasSubstr("files of folders: 2 no text, 1 too long, 0 not readable"));
}

}  // namespace
}  // namespace evaluate_test
