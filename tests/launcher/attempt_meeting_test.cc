// Node 0 tells the others where an attempt meets, or why it cannot begin.
#include "launcher/attempt_meeting.h"

#include <string>

#include "gtest/gtest.h"

namespace dtrain::launcher::attempt_meeting_test {
namespace {

TEST(Meeting, IsReadAsItWasTold) {
  const auto read = ParseMeeting(Encode({.store = {"0.0.0.0", 4711},
                                         .run_id = "a1",
                                         .log_number = 3,
                                         .master_port = 29501,
                                         .begins_job = true}),
                                 "n0");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->store.ToString(), "n0:4711") << "the host by which the reader knows node 0";
  EXPECT_EQ(read->run_id, "a1");
  EXPECT_EQ(read->log_number, 3);
  EXPECT_EQ(read->master_port, 29501);
  EXPECT_TRUE(read->begins_job);
  EXPECT_TRUE(read->error.ok());
}

TEST(Meeting, CarriesTheErrorThatKeepsNodeZeroFromBeginning) {
  const absl::Status error = absl::PermissionDeniedError("run directory r is not writable");
  const auto read = ParseMeeting(Encode({.error = error}), "n0");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->error, error);
}

TEST(Meeting, OfAnotherFormIsRefused) {
  for (const char* const text : {"", "[]", "7", R"({"port": "x"})", R"({"run_id": 1})",
                                 R"({"code": 5, "message": []})", R"({"begins_job": 1})"}) {
    EXPECT_FALSE(ParseMeeting(text, "n0").ok()) << text;
  }
}

}  // namespace
}  // namespace dtrain::launcher::attempt_meeting_test
