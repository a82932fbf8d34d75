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
    }
  }
  return absl::StrFormat("%016x", hash.value());
}

}  // namespace dtrain::plan
