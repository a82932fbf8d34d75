// Documents in a row of tokens: where each starts, and which targets belong to the next one.
//
// Pure; thread-safe. A row is what a sample reads: sequence_length inputs and one token more. Its
// first token starts a document, or goes on with one that an earlier row began: attention and
// positions start anew there either way, as they do without documents.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace dtrain::plan {

// The separator; negative: a row is one document.
struct DocumentRule {
  int64_t token = -1;
  bool starts = false;  // It is a document's first token, else its last.
};

// A target that no loss counts: LibTorch's own choice for cross-entropy.
inline constexpr int64_t kIgnoredTarget = -100;

// Fills for a row of n + 1 tokens positions[i] with the place of token i in its document, and
// targets[i] with token i + 1, or with kIgnoredTarget if that token belongs to the next document.
// REQUIRES: both spans have n elements.
void MarkDocuments(absl::Span<const int64_t> row, DocumentRule rule, absl::Span<int64_t> positions,
                   absl::Span<int64_t> targets);

// The same for a row whose tokens have a mask's bytes (token_mask.h): kMaskStart starts a document,
// and a target without kMaskTrained is kIgnoredTarget. REQUIRES: `row` and `mask` have one element
// more than the two others.
void MarkSamples(absl::Span<const int64_t> row, absl::Span<const uint8_t> mask,
                 absl::Span<int64_t> positions, absl::Span<int64_t> targets);

}  // namespace dtrain::plan
