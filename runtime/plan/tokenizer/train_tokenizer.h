// Learns a byte-level BPE vocabulary from texts and writes it as a tokenizer.json that Hugging
// Face's `tokenizers` and Tokenizer::Load read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan {

struct TrainTokenizerOptions {
  int64_t vocab_size = 32768;     // With the 256 bytes and the special tokens.
  std::string pattern = "qwen2";  // "gpt2", "cl100k", "llama3", "qwen2" or "o200k".
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // The first one ends documents.
  int64_t min_frequency = 2;                                    // Rarer pairs are not merged.
  int threads = 0;                                              // 0: all cores.
};

struct TrainTokenizerReport {
  int64_t documents = 0;
  int64_t bytes = 0;
  int64_t words = 0;       // Different ones.
  int64_t vocab_size = 0;  // Smaller than asked for if the text has too few pairs.
};

// Gives the next document; false: there is none left.
using NextDocument = std::function<absl::StatusOr<bool>(std::string* document)>;

// Reads all documents and writes `out`/tokenizer.json and `out`/tokenizer_config.json. The same
// documents in the same order give the same bytes at any number of threads.
absl::StatusOr<TrainTokenizerReport> TrainTokenizer(const NextDocument& next,
                                                    const TrainTokenizerOptions& options,
                                                    const std::string& out);

}  // namespace dtrain::plan
