// Reports of a process when something goes wrong: log lines, failed checks, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain::report_test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

std::string Logged(LogLevel level, const std::string& text) {
  testing::internal::CaptureStderr();
  LogLine(level, text);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, NamesLevelTimeAndRank) {
  EXPECT_THAT(Logged(LogLevel::kInfo, "hello"), MatchesRegex("\\[I [0-9:]+\\.[0-9]+\\] hello\n"));
  SetLogRank(3);
  EXPECT_THAT(Logged(LogLevel::kWarning, "hello"),
              MatchesRegex("\\[W [0-9:]+\\.[0-9]+ rank 3\\] hello\n"));
  SetLogRank(-1);
}

TEST(Log, DoesNotLetAPeersTextDriveTheTerminal) {
  EXPECT_THAT(Logged(LogLevel::kError, "a\x1b[2Jb\rc\td"), HasSubstr("a?[2Jb?c\td"));
}

TEST(Log, DropsLinesBelowTheThresholdUnevaluated) {
  int evaluated = 0;
  const auto text = [&evaluated] {
    ++evaluated;
    return "x";
  };
  testing::internal::CaptureStderr();
  SetLogLevel(LogLevel::kError);
  DT_LOG(Warning) << text();
  SetLogLevel(LogLevel::kInfo);
  DT_LOG(Debug) << text();
  DT_LOG(Info) << text();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("] x\n"));
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, ReportsValuesRunsHooksAndExits70) {
  EXPECT_EXIT(
      {
        AddCrashHook([] { std::fputs("hook ran\n", stderr); });
        DT_CHECK_EQ(1 + 1, 3) << "bucket 7";
      },
      testing::ExitedWithCode(kExitBug), "report_test.cc.*2 vs 3.*bucket 7(.|\n)*hook ran");
}

TEST(CheckDeathTest, AHookThatFailsItselfDoesNotRecurse) {
  EXPECT_EXIT(
      {
        AddCrashHook([] { DT_CHECK(false) << "in the hook"; });
        DT_CHECK_OK(absl::InternalError("first"));
      },
      testing::ExitedWithCode(kExitBug), "first");
}

// docs/FAILURES.md holds the same table.
TEST(ExitCodeFor, FollowsTheTable) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  for (const auto code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
        absl::StatusCode::kAlreadyExists, absl::StatusCode::kOutOfRange,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnimplemented,
        absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated}) {
    EXPECT_EQ(ExitCodeFor(absl::Status(code, "")), 64) << code;
  }
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded,
                          absl::StatusCode::kAborted, absl::StatusCode::kResourceExhausted}) {
    EXPECT_EQ(ExitCodeFor(absl::Status(code, "")), 75) << code;
  }
  for (const auto code :
       {absl::StatusCode::kInternal, absl::StatusCode::kDataLoss, absl::StatusCode::kUnknown}) {
    EXPECT_EQ(ExitCodeFor(absl::Status(code, "")), 70) << code;
  }
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), 130);
}

TEST(Annotate, KeepsCodeAndPayloads) {
  absl::Status status = absl::UnavailableError("peer gone");
  status.SetPayload("rank", absl::Cord("3"));
  const absl::Status annotated = Annotate(status, "step 5");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(annotated.message(), "step 5: peer gone");
  EXPECT_EQ(annotated.GetPayload("rank"), absl::Cord("3"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "step 5").ok());
}

TEST(ErrnoStatus, GivesTheCodeThatDecidesTheRestart) {
  const std::vector<std::pair<absl::StatusCode, std::vector<int>>> table = {
      {absl::StatusCode::kNotFound, {ENOENT}},
      {absl::StatusCode::kAlreadyExists, {EEXIST}},
      {absl::StatusCode::kPermissionDenied, {EACCES, EPERM, EROFS}},
      {absl::StatusCode::kResourceExhausted, {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM}},
      {absl::StatusCode::kInvalidArgument, {EINVAL, ENOTDIR, EISDIR, ENAMETOOLONG, ENOEXEC}},
      {absl::StatusCode::kDeadlineExceeded, {ETIMEDOUT}},
      {absl::StatusCode::kUnavailable, {ECONNRESET, EIO, EPIPE}}};
  for (const auto& [code, errors] : table) {
    for (const int error : errors) {
      EXPECT_EQ(ErrnoStatus(error, "open f").code(), code) << error;
    }
  }
  EXPECT_EQ(ErrnoStatus(ENOENT, "open f").message(), "open f: No such file or directory");
}

absl::StatusOr<int> Doubled(const absl::StatusOr<int>& value) {
  DT_ASSIGN_OR_RETURN(const int number, value);
  DT_RETURN_IF_ERROR(number > 0 ? absl::OkStatus() : absl::OutOfRangeError("not positive"));
  return 2 * number;
}

TEST(StatusMacros, PassErrorsUp) {
  EXPECT_EQ(Doubled(4).value(), 8);
  EXPECT_EQ(Doubled(-4).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Doubled(absl::AbortedError("x")).status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace dtrain::report_test
