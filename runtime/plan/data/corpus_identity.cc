#include "runtime/plan/data/corpus_identity.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kBlockTokens = 64;
constexpr int64_t kBlocksMax = 256;  // For all files together.
constexpr int64_t kBlocksMin = 4;    // For each file.

// A corpus without masks has the identity that it had before there were any.
absl::Status AddMask(const TokenCorpus& corpus, const SampleLocation& at, int64_t count,
                     StableHash& hash) {
  if (!corpus.is_masked(at.file)) {
    return absl::OkStatus();
  }
  std::vector<uint8_t> mask(static_cast<size_t>(count));
  DT_RETURN_IF_ERROR(corpus.ReadMask(at, count - 1, mask.data()));
  for (const uint8_t bits : mask) {
    hash.Add(uint64_t{bits});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CorpusIdentity(const TokenCorpus& corpus) {
  StableHash hash;
  const auto files = static_cast<int64_t>(corpus.files().size());
  const int64_t blocks_max = std::max(kBlocksMin, kBlocksMax / std::max<int64_t>(1, files));
  std::vector<int64_t> tokens(static_cast<size_t>(kBlockTokens));
  for (int64_t index = 0; index < files; ++index) {
    const TokenFile& file = corpus.files()[static_cast<size_t>(index)];
    hash.Add(static_cast<uint64_t>(file.tokens()));
    const int64_t count = std::min(kBlockTokens, file.tokens());
    const int64_t blocks = std::min(blocks_max, (file.tokens() + kBlockTokens - 1) / kBlockTokens);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t offset = blocks == 1 ? 0 : (file.tokens() - count) * block / (blocks - 1);
      DT_RETURN_IF_ERROR(corpus.Read({.file = static_cast<int>(index), .offset = offset}, count - 1,
                                     /*vocabulary=*/0, tokens.data()));
      for (int64_t i = 0; i < count; ++i) {
        hash.Add(static_cast<uint64_t>(tokens[static_cast<size_t>(i)]));
      }
      DT_RETURN_IF_ERROR(
          AddMask(corpus, {.file = static_cast<int>(index), .offset = offset}, count, hash));
    }
  }
  return absl::StrFormat("%016x", hash.value());
}

}  // namespace dtrain::plan
