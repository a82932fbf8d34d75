#include "runtime/plan/data/text/prepare_journal.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::prepare_journal_test {
namespace {

TEST(PrepareJournalTest, ReadsWhatItWrites) {
  PrepareProgress progress;
  progress.fingerprint = "abc";
  progress.source = 3;
  progress.record = 70;
  progress.seen = 5;
  progress.at_limit = true;
  progress.counts.bad = 1;
  progress.counts.text_bytes = 99;
  progress.train = {4, 400};
  progress.validation = {1, 20};
  const auto again = PrepareProgress::FromJson(progress.ToJson());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, progress);
}

TEST(PrepareJournalTest, AMemberThatIsMissingOrWrongIsAnError) {
  const Json whole = PrepareProgress().ToJson();
  for (const auto& [name, value] : whole.items()) {
    Json missing = whole;
    missing.erase(name);
    EXPECT_FALSE(PrepareProgress::FromJson(missing).ok()) << name;
    Json wrong = whole;
    wrong[name] = Json::array({-1, "x"});
    EXPECT_FALSE(PrepareProgress::FromJson(wrong).ok()) << name;
  }
  EXPECT_FALSE(PrepareProgress::FromJson(Json::array()).ok());
}

}  // namespace
}  // namespace dtrain::plan::prepare_journal_test
