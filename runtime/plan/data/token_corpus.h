// TokenCorpus: the token files of one split and their masks, in a fixed order, read by window.
//
// Thread-safe after Open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain::plan {

// The files that `patterns` (paths, or glob patterns with * ? [ ]) name: in the order of the
// patterns, each pattern's files sorted by bytes, each file once. A file whose whole name is given
// is taken as it is, with [1] in it too. `store` expands addresses. NotFound names a pattern
// without a file; InvalidArgument: no pattern.
absl::StatusOr<std::vector<std::string>> ExpandTokenPaths(absl::Span<const std::string> patterns,
                                                          DataStore* store = nullptr);

// A part of a mixture as the configuration names it.
struct CorpusPart {
  std::vector<std::string> patterns;
  double weight = 1;
};

class TokenCorpus {
 public:
  // Opens all files. InvalidArgument also when two files say different vocabularies.
  static absl::StatusOr<TokenCorpus> Open(absl::Span<const std::string> patterns,
                                          TokenFormat format);
  // The same for a mixture: the files of its parts, one after the other. `store` reads files at
  // addresses and outlives the corpus; without it they are refused.
  static absl::StatusOr<TokenCorpus> Open(absl::Span<const CorpusPart> parts, TokenFormat format,
                                          DataStore* store = nullptr);

  const std::vector<TokenFile>& files() const { return files_; }
  // The parts, as a sampler takes them.
  std::vector<SamplerPart> parts() const;
  std::vector<int64_t> tokens_per_file() const;
  int64_t tokens() const;
  // The vocabulary that the files name; 0: they name none.
  int64_t vocabulary() const { return vocabulary_; }

  // The sequence_length + 1 tokens of a sample into `out`. With `vocabulary` > 0 also checks the
  // ids: a loader finds a bad id when it reads it, not hours later in a gather. Errors as
  // TokenFile::Copy. REQUIRES: `sample` comes from a sampler over tokens_per_file().
  absl::Status Read(const SampleLocation& sample, int64_t sequence_length, int64_t vocabulary,
                    int64_t* out) const;

  // Whether a file has a mask, and whether any has.
  bool is_masked(int file) const { return masks_[static_cast<size_t>(file)].has_value(); }
  bool has_masks() const;
  // The mask's bytes of the same tokens. REQUIRES: is_masked(sample.file).
  absl::Status ReadMask(const SampleLocation& sample, int64_t sequence_length, uint8_t* out) const;
  // Says that the sample, and its mask, will be read soon; as DataFile::WillRead.
  bool WillRead(const SampleLocation& sample, int64_t sequence_length) const;
  // InvalidArgument if samples are packed for rows of another length: they would be cut.
  absl::Status CheckRowLength(int64_t sequence_length) const;

 private:
  TokenCorpus() = default;
  absl::Status Add(const CorpusPart& part, TokenFormat format, DataStore* store);

  struct Part {
    size_t files = 0;
    double weight = 1;
  };
  std::vector<TokenFile> files_;
  std::vector<std::optional<MaskFile>> masks_;  // Beside the files.
  std::vector<Part> parts_;
  size_t named_ = 0;  // The file that names the vocabulary, if one does.
  int64_t vocabulary_ = 0;
};

}  // namespace dtrain::plan
