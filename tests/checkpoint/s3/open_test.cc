// A start that goes wrong is told in one line, within a second on a calm machine, and without a
// secret.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "tests/checkpoint/s3/fault_proxy.h"
#include "tests/checkpoint/s3/s3_server.h"
#include "tests/testing/ports.h"
#include "tests/testing/shortest.h"

namespace dtrain::checkpoint::s3::open_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The real time, moved.
class MovedClock final : public Clock {
 public:
  explicit MovedClock(absl::Duration by) : by_(by) {}
  int64_t MonotonicNanos() const override { return Clock::Real().MonotonicNanos(); }
  absl::Time WallTime() const override { return Clock::Real().WallTime() + by_; }
  void Sleep(absl::Duration duration) override { Clock::Real().Sleep(duration); }

 private:
  const absl::Duration by_;
};

class OpenTest : public ::testing::Test {
 protected:
  // The end of `start`, which comes so soon.
  static absl::Status WithinASecond(const std::function<absl::Status()>& start) {
    absl::Status status;
    const absl::Duration shortest = testing::ShortestOf(10, absl::Seconds(1), [&] {
      const int64_t begin = Clock::Real().MonotonicNanos();
      status = start();
      return absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
    });
    EXPECT_LT(shortest, absl::Seconds(1)) << status;
    return status;
  }
  absl::Status Open(const std::string& url, const S3Options& options) {
    const absl::Status status = WithinASecond([&] { return OpenS3Storage(url, options).status(); });
    const std::string message(status.message());
    EXPECT_THAT(message,
                AllOf(Not(HasSubstr("canary")), Not(HasSubstr("AKIA")), Not(HasSubstr("\n"))));
    return status;
  }
  void ExpectPlace(const absl::Status& status) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("s3://checkpoints"), HasSubstr("region us-east-1"),
                      HasSubstr(absl::StrCat("endpoint ", server_.endpoint()))));
  }

  S3Server& server_ = S3Server::Of(S3Server::Kind::kSeaweed);
  const std::string url_ = server_.NewUrl();
  S3Options options_ = OptionsOf(server_.endpoint());
};

TEST_F(OpenTest, AWrongAccessKeyIsTold) {
  (*options_.environment)["AWS_ACCESS_KEY_ID"] = "AKIACANARYACCESSKEY0";
  const absl::Status status = Open(url_, options_);
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("check AWS_ACCESS_KEY_ID"));
  ExpectPlace(status);
}

TEST_F(OpenTest, AWrongSecretKeyIsTold) {
  (*options_.environment)["AWS_SECRET_ACCESS_KEY"] = "canary/wrong+secret";
  const absl::Status status = Open(url_, options_);
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("check AWS_SECRET_ACCESS_KEY"));
  ExpectPlace(status);
}

TEST_F(OpenTest, AWrongBucketIsTold) {
  const absl::Status status = Open("s3://checkpoints-of-nobody/run", options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("s3://checkpoints-of-nobody"), HasSubstr("there is no such bucket")));
}

TEST_F(OpenTest, AClockThatIsOffByAnHourIsTold) {
  for (const absl::Duration off : {absl::Hours(1), -absl::Hours(1)}) {
    MovedClock clock(off);
    options_.clock = &clock;
    const absl::Status status = Open(url_, options_);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("this machine's clock differs from the server's by "),
                      HasSubstr(off > absl::ZeroDuration() ? "ahead" : "behind")));
    ExpectPlace(status);
  }
}

TEST_F(OpenTest, AMissingPermissionToWriteIsToldAtTheFirstWrite) {
  (*options_.environment)["AWS_ACCESS_KEY_ID"] = S3Server::kReaderKey;
  (*options_.environment)["AWS_SECRET_ACCESS_KEY"] = S3Server::kReaderSecret;
  const auto storage = OpenS3Storage(url_, options_);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const absl::Status status =
      WithinASecond([&] { return (*storage)->Publish("epochs/E00000001", "x"); });
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("with the keys of AWS_ACCESS_KEY_ID"),
                    HasSubstr("a policy must allow s3:PutObject"), HasSubstr(url_)));
  ExpectPlace(status);
}

TEST_F(OpenTest, WithoutCredentialsTheErrorSaysWhereItLooked) {
  options_.environment->erase("AWS_ACCESS_KEY_ID");
  options_.environment->erase("AWS_SECRET_ACCESS_KEY");
  const absl::Status status = Open(url_, options_);
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no credentials were found"));
}

TEST_F(OpenTest, AnEndpointWhereNothingListensIsTriedAFewTimes) {
  const UniqueFd bound = test_ports::BindLoopback(0);
  options_.endpoint = absl::StrCat("http://127.0.0.1:", test_ports::PortOf(bound));
  const absl::Status status = Open(url_, options_);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("gave up after 10 tries"), HasSubstr(options_.endpoint)));
}

TEST_F(OpenTest, OptionsThatS3DoesNotAllowAreRefused) {
  options_.part_bytes = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(Open(url_, options_)));
  options_.part_bytes = 5 << 20;
  options_.parts_at_once = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Open(url_, options_)));
}

// Everything that a program prints while its requests are tried again, and when its key is wrong.
TEST_F(OpenTest, NoSecretIsInTheOutputOfAProgramThatFails) {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/out";
  for (const Fault fault : {Fault::kSlowDown, Fault::kNone}) {
    FaultProxy proxy(server_.port(), [fault](const std::string&, int) { return fault; });
    Environment environment = WriterEnvironment(proxy.endpoint());
    environment["AWS_SECRET_ACCESS_KEY"] = "canary/wrong+secret";
    environment["AWS_SESSION_TOKEN"] = "canary-session-token";
    environment["DTRAIN_LOG_LEVEL"] = "debug";
    ChildProcess tool({TOOL_PATH, "list", url_}, environment, out);
    EXPECT_NE(tool.Wait(), 0);
  }
  const std::string output = *ReadFile(out);
  EXPECT_THAT(output, HasSubstr("trying again"));
  EXPECT_THAT(output, AllOf(Not(HasSubstr("canary")), Not(HasSubstr("AKIA"))));
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::open_test
