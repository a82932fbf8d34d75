#include "runtime/plan/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace dtrain::plan::documents_test {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kNone = kIgnoredTarget;

struct Marked {
  std::vector<int64_t> positions;
  std::vector<int64_t> targets;
};

Marked Mark(const std::vector<int64_t>& row, DocumentRule rule) {
  Marked marked;
  marked.positions.resize(row.size() - 1);
  marked.targets.resize(row.size() - 1);
  MarkDocuments(row, rule, absl::MakeSpan(marked.positions), absl::MakeSpan(marked.targets));
  return marked;
}

TEST(DocumentsTest, WithoutASeparatorARowIsOneDocument) {
  const Marked marked = Mark({5, 0, 6, 7}, {});
  EXPECT_THAT(marked.positions, ElementsAre(0, 1, 2));
  EXPECT_THAT(marked.targets, ElementsAre(0, 6, 7));
}

TEST(DocumentsTest, ATokenThatEndsADocumentIsItsLastTarget) {
  const Marked marked = Mark({5, 6, 0, 7, 8, 0, 0, 9}, {.token = 0});
  EXPECT_THAT(marked.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0));
  EXPECT_THAT(marked.targets, ElementsAre(6, 0, kNone, 8, 0, kNone, kNone));
}

TEST(DocumentsTest, ATokenThatStartsADocumentIsNobodysTarget) {
  const Marked marked = Mark({5, 6, 1, 7, 8, 1}, {.token = 1, .starts = true});
  EXPECT_THAT(marked.positions, ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(marked.targets, ElementsAre(6, kNone, 7, 8, kNone));
}

TEST(DocumentsTest, ASeparatorAtTheRowsEdgesIsLikeAnyOther) {
  const Marked ends = Mark({0, 4, 0, 3}, {.token = 0});
  EXPECT_THAT(ends.positions, ElementsAre(0, 0, 1));
  EXPECT_THAT(ends.targets, ElementsAre(kNone, 0, kNone));
  const Marked starts = Mark({1, 4}, {.token = 1, .starts = true});
  EXPECT_THAT(starts.positions, ElementsAre(0));
  EXPECT_THAT(starts.targets, ElementsAre(4));
}

}  // namespace
}  // namespace dtrain::plan::documents_test
