// TokenCorpus: the token files of one split, in a fixed order, read by window.
//
// Thread-safe after Open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain::plan {

// The files that `patterns` (paths, or glob patterns with * ? [ ]) name: in the order of the
// patterns, each pattern's files sorted by bytes, each file once. A file whose whole name is given
// is taken as it is, with [1] in it too. NotFound names a pattern without a file; InvalidArgument:
// no pattern.
absl::StatusOr<std::vector<std::string>> ExpandTokenPaths(absl::Span<const std::string> patterns);

class TokenCorpus {
 public:
  // Opens all files. InvalidArgument also when two files say different vocabularies.
  static absl::StatusOr<TokenCorpus> Open(absl::Span<const std::string> patterns,
                                          TokenFormat format);

  const std::vector<TokenFile>& files() const { return files_; }
  std::vector<int64_t> tokens_per_file() const;
  int64_t tokens() const;
  // The vocabulary that the files name; 0: they name none.
  int64_t vocabulary() const { return vocabulary_; }

  // The sequence_length + 1 tokens of a sample into `out`. With `vocabulary` > 0 also checks the
  // ids (error as TokenFile::CheckIds): a loader finds a bad id when it reads it, not hours later
  // in a gather; errors as TokenFile::Copy too. REQUIRES: `sample` comes from a sampler over
  // tokens_per_file().
  absl::Status Read(const SampleLocation& sample, int64_t sequence_length, int64_t vocabulary,
                    int64_t* out) const;

 private:
  TokenCorpus() = default;
  std::vector<TokenFile> files_;
  int64_t vocabulary_ = 0;
};

}  // namespace dtrain::plan
