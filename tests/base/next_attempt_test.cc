#include "base/next_attempt.h"

#include <gtest/gtest.h>

namespace dtrain::next_attempt_test {
namespace {

TEST(NextAttempt, ArrivesAsSent) {
  const NextAttempt sent{.environment = {{"RANK", "1"}, {"ODD", "a=\"b\"\n$(c)"}},
                         .out_path = "/logs/rank-1.out",
                         .err_path = "/logs/rank-1.err"};
  const auto received = NextAttempt::Parse(sent.Encode());
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->environment, sent.environment);
  EXPECT_EQ(received->out_path, sent.out_path);
  EXPECT_EQ(received->err_path, sent.err_path);
}

TEST(NextAttempt, MalformedOrdersAreRefused) {
  for (const char* const line :
       {"", "[]", "{}", R"({"environment": 1, "out_path": "a", "err_path": "b"})",
        R"({"environment": {"A": 1}, "out_path": "a", "err_path": "b"})",
        R"({"environment": {"": "1"}, "out_path": "a", "err_path": "b"})",
        R"({"environment": {}, "out_path": "a"})",
        R"({"environment": {}, "out_path": "a", "err_path": 2})"}) {
    EXPECT_FALSE(NextAttempt::Parse(line).ok()) << line;
  }
}

}  // namespace
}  // namespace dtrain::next_attempt_test
