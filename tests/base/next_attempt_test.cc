#include "base/next_attempt.h"

#include <gtest/gtest.h>

namespace dtrain::next_attempt_test {
namespace {

TEST(NextAttempt, ArrivesAsSent) {
  const NextAttempt sent{.environment = {{"RANK", "1"}, {"ODD", "a=\"b\"\n$(c)"}},
                         .out_path = "/logs/rank-1.out",
                         .err_path = "/logs/rank-1.err",
                         .cpus = {2, 5},
                         .memory_node = 1};
  const auto received = NextAttempt::Parse(sent.Encode());
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->environment, sent.environment);
  EXPECT_EQ(received->out_path, sent.out_path);
  EXPECT_EQ(received->err_path, sent.err_path);
  EXPECT_EQ(received->cpus, sent.cpus);
  EXPECT_EQ(received->memory_node, sent.memory_node);
}

TEST(NextAttempt, MalformedOrdersAreRefused) {
  for (
      const char* const line :
      {"", "[]", "{}", R"({"environment": 1, "out_path": "a", "err_path": "b"})",
       R"({"environment": {"A": 1}, "out_path": "a", "err_path": "b"})",
       R"({"environment": {"": "1"}, "out_path": "a", "err_path": "b"})",
       R"({"environment": {}, "out_path": "a"})",
       R"({"environment": {}, "out_path": "a", "err_path": 2})",
       R"({"environment": {}, "out_path": "a", "err_path": "b"})",
       R"({"environment": {}, "out_path": "a", "err_path": "b", "cpus": 1, "memory_node": 0})",
       R"({"environment": {}, "out_path": "a", "err_path": "b", "cpus": ["1"],
            "memory_node": 0})",
       R"({"environment": {}, "out_path": "a", "err_path": "b", "cpus": [], "memory_node": ""})"}) {
    EXPECT_FALSE(NextAttempt::Parse(line).ok()) << line;
  }
  EXPECT_FALSE(NextAttempt::Parse(kEndOrder).ok());
}

}  // namespace
}  // namespace dtrain::next_attempt_test
