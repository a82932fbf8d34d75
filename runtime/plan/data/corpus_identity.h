// Identifies the text of a corpus. A resumed run compares it, since files may be replaced by others
// of the same name and length. Pure but for the reads.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/plan/data/token_corpus.h"

namespace dtrain::plan {

// A hash of the files' order, lengths, tokens and masks: of all tokens of small files, of blocks at
// equal distances, with the first and the last one, of larger ones. Names do not count. Reads at
// most 64 KiB of a corpus of up to 64 files and 1 KiB of each file of a larger one. Errors as
// TokenCorpus::Read.
absl::StatusOr<std::string> CorpusIdentity(const TokenCorpus& corpus);

}  // namespace dtrain::plan
