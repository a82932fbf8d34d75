#include "runtime/plan/data/documents.h"

#include "base/check.h"
#include "runtime/plan/data/token_mask.h"

namespace dtrain::plan {

void MarkDocuments(absl::Span<const int64_t> row, DocumentRule rule, absl::Span<int64_t> positions,
                   absl::Span<int64_t> targets) {
  DT_CHECK(row.size() == positions.size() + 1 && positions.size() == targets.size())
      << row.size() << " tokens, " << positions.size() << " positions, " << targets.size()
      << " targets";
  const auto starts = [&](size_t i) {  // REQUIRES: i > 0.
    return rule.token >= 0 && row[rule.starts ? i : i - 1] == rule.token;
  };
  int64_t position = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    position = i > 0 && !starts(i) ? position + 1 : 0;
    positions[i] = position;
    targets[i] = starts(i + 1) ? kIgnoredTarget : row[i + 1];
  }
}

void MarkSamples(absl::Span<const int64_t> row, absl::Span<const uint8_t> mask,
                 absl::Span<int64_t> positions, absl::Span<int64_t> targets) {
  DT_CHECK(row.size() == positions.size() + 1 && mask.size() == row.size() &&
           positions.size() == targets.size())
      << row.size() << " tokens, " << mask.size() << " mask bytes, " << positions.size()
      << " positions, " << targets.size() << " targets";
  int64_t position = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    position = i > 0 && (mask[i] & kMaskStart) == 0 ? position + 1 : 0;
    positions[i] = position;
    // A sample's first token has no token before it in its document that could predict it.
    const bool counts = (mask[i + 1] & (kMaskTrained | kMaskStart)) == kMaskTrained;
    targets[i] = counts ? row[i + 1] : kIgnoredTarget;
  }
}

}  // namespace dtrain::plan
