// Writes the files of a split from its spool: llm.c's or Megatron's, or rows of packed samples with
// their mask. All files appear under temporary names and are renamed together at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/text/token_spool.h"

namespace dtrain::plan {

enum class CorpusFormat { kLlmc, kMegatron };

// Documents of a spool, one after the other.
struct SpoolRange {
  SpoolFiles files;
  int64_t first_document = 0;
  int64_t documents = 0;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

struct CorpusFilesOptions {
  std::string folder;
  std::string work_folder;  // On the same file system, for temporary names.
  CorpusFormat format = CorpusFormat::kLlmc;
  int64_t vocabulary = 0;
  int64_t shard_tokens = 0;  // The most that one file may have.
  int64_t row_length = 0;    // Above 0: samples are packed into rows of so many tokens.
  uint32_t pad_token = 0;
};

struct WrittenFile {
  std::string temporary;
  std::string path;
  int64_t tokens = 0;  // 0 for files that hold no tokens: masks and indices.
};

struct WrittenSplit {
  std::vector<WrittenFile> files;
  int64_t tokens = 0;  // Padding too.
  int64_t padding = 0;
  int64_t trained = 0;  // Tokens that the loss counts, of masked samples.
  int64_t rows = 0;     // Rows of packed samples.
};

// Writes `name`.bin, or `name`-00000.bin and so on where more than one file is needed. Whole on
// disk, under temporary names.
absl::StatusOr<WrittenSplit> WriteSplitFiles(const SpoolRange& range, const std::string& name,
                                             const CorpusFilesOptions& options);

// Gives the files of all splits their names, after removing what an earlier preparation has left
// beside them that they would be read with: a mask, an index, shards of the same name, or
// corpus.json, which the caller writes anew.
absl::Status PublishFiles(const std::vector<WrittenSplit>& splits,
                          const std::vector<std::string>& names, const std::string& folder);

}  // namespace dtrain::plan
