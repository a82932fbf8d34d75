// The rows of tokens over which `dtrain eval` computes a loss: every window of token files once, or
// texts made into tokens as `dtrain data prepare` makes them. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/text/chat_template.h"
#include "runtime/plan/tokenizer/tokenizer.h"

// The tokens that a model reads and, one place on, those that it is to predict: one more than it
// reads.
struct EvalRow {
  std::vector<int64_t> tokens;
  std::vector<uint8_t> mask;  // Bits of token_mask.h for each token; empty: all count, as one text.
};

class EvalRows {
 public:
  explicit EvalRows(int64_t sequence_length) : sequence_length_(sequence_length) {}
  virtual ~EvalRows() = default;
  // The next row; nothing behind the last one.
  virtual absl::StatusOr<std::optional<EvalRow>> Next() = 0;
  // Tells people what was left out of the data; "" if nothing was.
  virtual std::string LeftOut() const { return ""; }
  // The most tokens of a row that are to be predicted.
  int64_t sequence_length() const { return sequence_length_; }

 private:
  int64_t sequence_length_;
};

struct EvalData {
  std::vector<std::string> paths;  // Token files (*.bin, also by patterns), or texts and folders.
  // A row has at most so many tokens to predict. 0: as many as the rows of packed samples, else
  // 1024, or fewer where the model takes fewer.
  int64_t sequence_length = 0;
  int64_t positions = 0;                           // The model's: no row is longer.
  int64_t vocabulary = 0;                          // The model's: ids are below it.
  std::string tokenizer_name = "the tokenizer";    // The one that is given, in messages.
  std::string text_key = "text";                   // The key of the text in JSONL.
  std::optional<dtrain::plan::ChatTemplate> chat;  // Lines are instruction data.
};

// The last row of a file is as long as what is left of it. `tokenizer` must outlive the rows.
// InvalidArgument: a length that the model or the files do not take; token files of another
// vocabulary, both sizes named; a template with token files, whose mask says already what counts.
// Errors of the sources name file and line.
absl::StatusOr<std::unique_ptr<EvalRows>> OpenEvalRows(const EvalData& data,
                                                       const dtrain::plan::Tokenizer& tokenizer);
