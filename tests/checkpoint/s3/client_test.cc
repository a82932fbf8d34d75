// Requests of the client without a network: what is tried again and how often, lost replies, errors
// inside of a 200, renewed credentials.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <deque>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/storage/s3/digest.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/s3/transfer_threads.h"
#include "tests/checkpoint/s3/fake_transport.h"

namespace dtrain::checkpoint::s3::client_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kSecret[] = "canary-secret";

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    options_.clock = &clock_;
    options_.tries_max = 5;
  }
  S3Client& Client() {
    if (client_ == nullptr) {
      S3Settings settings;
      settings.bucket = "bucket";
      settings.region = "us-east-1";
      settings.endpoint = "http://s3";
      settings.path_style = true;
      client_ =
          std::make_unique<S3Client>(settings, options_, environment_, ProfileFound(), transport_);
    }
    return *client_;
  }
  static HttpReply Object(const std::string& nonce, uint64_t bytes) {
    return ReplyOf(200, "",
                   {{"content-length", absl::StrCat(bytes)}, {"x-amz-meta-dtrain-nonce", nonce}});
  }

  FakeClock clock_;
  S3Options options_;
  Environment environment_ = {{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", kSecret}};
  std::deque<absl::StatusOr<HttpReply>> replies_;  // In order; the last one stays.
  std::vector<HttpRequest> requests_;
  FakeTransport transport_{[this](const HttpRequest& request) -> absl::StatusOr<HttpReply> {
    requests_.push_back(request);
    absl::StatusOr<HttpReply> reply = replies_.front();
    if (replies_.size() > 1) {
      replies_.pop_front();
    }
    return reply;
  }};
  std::unique_ptr<S3Client> client_;
};

TEST_F(ClientTest, ARequestIsSignedForItsPlace) {
  replies_ = {ReplyOf(200)};
  ASSERT_TRUE(Client().Put("runs/a b/\u00e9", BytesOf("x")).ok());
  EXPECT_EQ(requests_[0].url, "http://s3/bucket/runs/a%20b/%C3%A9");
  EXPECT_THAT(HeaderIn(requests_[0], "authorization"),
              HasSubstr("SignedHeaders=content-type;host;x-amz-checksum-crc32c;"
                        "x-amz-content-sha256;x-amz-date, Signature="));
  EXPECT_EQ(HeaderIn(requests_[0], "x-amz-content-sha256"), Sha256Hex(BytesOf("x")));
  EXPECT_THAT(transport_.everything(), Not(HasSubstr(kSecret)));
}

TEST_F(ClientTest, OverloadAndBrokenConnectionsAreTriedAgainWithWaitsBelowTheirLimits) {
  replies_ = {ErrorReply(503, "SlowDown"), absl::UnavailableError("reset"), ReplyOf(500),
              ReplyOf(429), ReplyOf(200)};
  const int64_t begin = clock_.MonotonicNanos();
  EXPECT_TRUE(Client().Put("k", {}).ok());
  EXPECT_THAT(requests_, SizeIs(5));
  EXPECT_LE(clock_.MonotonicNanos() - begin, absl::ToInt64Nanoseconds(absl::Milliseconds(1500)))
      << "0.1 + 0.2 + 0.4 + 0.8 s";
  EXPECT_GT(clock_.MonotonicNanos(), begin);
}

TEST_F(ClientTest, TriesAndTimeAreLimited) {
  replies_ = {ErrorReply(503, "SlowDown")};
  absl::Status status = Client().Put("k", {});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("gave up after 5 tries: cannot write s3://bucket/k (region us-east-1, "
                        "endpoint http://s3): the server is overloaded"));
  EXPECT_THAT(requests_, SizeIs(5));
  client_ = nullptr;
  requests_.clear();
  options_.tries_max = 1'000'000;
  options_.request_timeout = absl::Seconds(30);
  const int64_t begin = clock_.MonotonicNanos();
  EXPECT_TRUE(absl::IsUnavailable(Client().Put("k", {})));
  EXPECT_LE(clock_.MonotonicNanos() - begin, absl::ToInt64Nanoseconds(absl::Seconds(30)));
  EXPECT_GT(requests_.size(), 5U);
}

TEST_F(ClientTest, WhatCannotGetBetterIsNotTriedAgain) {
  for (const HttpReply& reply :
       {ErrorReply(403, "AccessDenied"), ErrorReply(403, "SignatureDoesNotMatch"),
        ErrorReply(403, "RequestTimeTooSkewed"), ErrorReply(404, "NoSuchBucket"), ReplyOf(301),
        ReplyOf(418)}) {
    requests_.clear();
    replies_ = {reply};
    EXPECT_FALSE(Client().Put("k", {}).ok());
    EXPECT_THAT(requests_, SizeIs(1)) << reply.body;
  }
}

TEST_F(ClientTest, ALostReplyOfAConditionalPutIsResolvedByTheNonce) {
  replies_ = {absl::UnavailableError("reset"), ErrorReply(412, "PreconditionFailed"),
              Object("mine", 1)};
  EXPECT_TRUE(Client().PutNew("k", BytesOf("x"), "mine").ok());
  EXPECT_EQ(HeaderIn(requests_[0], "if-none-match"), "*");
  EXPECT_EQ(requests_[2].method, "HEAD");
  replies_ = {ReplyOf(500), ErrorReply(412, "PreconditionFailed"), Object("another's", 1)};
  EXPECT_TRUE(absl::IsAlreadyExists(Client().PutNew("k", BytesOf("x"), "mine")));
  requests_.clear();
  replies_ = {ErrorReply(412, "PreconditionFailed")};
  EXPECT_TRUE(absl::IsAlreadyExists(Client().PutNew("k", BytesOf("x"), "mine")));
  EXPECT_THAT(requests_, SizeIs(1)) << "nothing was lost, so nothing is asked";
}

TEST_F(ClientTest, AnErrorInsideOfA200IsOne) {
  const std::vector<UploadedPart> parts = {{1, "\"e&1\"", "AAAAAA=="}};
  replies_ = {ErrorReply(200, "InternalError"), ReplyOf(200, "<CompleteMultipartUploadResult/>"),
              Object("n", 7)};
  EXPECT_TRUE(Client().CompleteUpload("k", "u", parts, 7, "n").ok());
  EXPECT_THAT(requests_, SizeIs(3));
  EXPECT_THAT(transport_.everything(),
              HasSubstr("<Part><PartNumber>1</PartNumber><ETag>&quot;e&amp;1&quot;</ETag>"
                        "<ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></Part>"));
  replies_ = {ErrorReply(200, "AccessDenied")};
  EXPECT_FALSE(Client().CompleteUpload("k", "u", parts, 7, "n").ok());
}

TEST_F(ClientTest, ALostReplyOfACompletionIsResolvedByTheNonceAndTheSizeIsChecked) {
  replies_ = {absl::UnavailableError("reset"), ErrorReply(404, "NoSuchUpload"), Object("n", 7)};
  EXPECT_TRUE(Client().CompleteUpload("k", "u", {}, 7, "n").ok());
  replies_ = {absl::UnavailableError("reset"), ErrorReply(404, "NoSuchUpload"), Object("old", 7)};
  EXPECT_FALSE(Client().CompleteUpload("k", "u", {}, 7, "n").ok());
  replies_ = {ErrorReply(404, "NoSuchUpload"), Object("n", 7)};
  EXPECT_FALSE(Client().CompleteUpload("k", "u", {}, 7, "n").ok()) << "nothing was lost";
  replies_ = {ReplyOf(200), Object("n", 6)};
  const absl::Status cut = Client().CompleteUpload("k", "u", {}, 7, "n");
  EXPECT_THAT(std::string(cut.message()), HasSubstr("has 6 bytes after an upload of 7"));
}

TEST_F(ClientTest, AFailedHeadIsExplainedByTheBodyOfAGet) {
  replies_ = {ReplyOf(403), ErrorReply(403, "InvalidAccessKeyId")};
  const auto info = Client().Head("k");
  EXPECT_TRUE(absl::IsUnauthenticated(info.status())) << info.status();
  // Where a GET may do what HEAD may not, HEAD's own error stands.
  replies_ = {ReplyOf(403), ReplyOf(206)};
  EXPECT_TRUE(absl::IsPermissionDenied(Client().Head("k").status()));
  requests_.clear();
  replies_ = {ReplyOf(404)};
  EXPECT_TRUE(absl::IsNotFound(Client().Head("k").status()));
  EXPECT_THAT(requests_, SizeIs(1));
}

TEST_F(ClientTest, AListingGoesOnToItsEnd) {
  const auto page = [](const std::string& key, const std::string& next) {
    return ReplyOf(200, absl::StrCat("<ListBucketResult><Contents><Key>", key,
                                     "</Key><Size>1</Size></Contents>",
                                     next.empty() ? ""
                                                  : absl::StrCat("<IsTruncated>true</IsTruncated>"
                                                                 "<NextContinuationToken>",
                                                                 next, "</NextContinuationToken>"),
                                     "</ListBucketResult>"));
  };
  replies_ = {page("a", "t=1&amp;2"), page("b", "u"), page("c", "")};
  const auto all = Client().List("p/", 0);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->objects, SizeIs(3));
  EXPECT_THAT(requests_[1].url, HasSubstr("continuation-token=t%3D1%262&"));
  replies_ = {page("a", "t")};
  EXPECT_FALSE(Client().List("p/", 0).ok()) << "it would never end";
}

TEST_F(ClientTest, ExpiredCredentialsAreFetchedAnewOnce) {
  environment_ = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/x"}};
  const HttpReply keys = ReplyOf(
      200,
      R"({"AccessKeyId": "id", "SecretAccessKey": "s", "Expiration": "2100-01-01T00:00:00Z"})");
  replies_ = {keys, ErrorReply(400, "ExpiredToken"), keys, ReplyOf(200)};
  EXPECT_TRUE(Client().Put("k", {}).ok());
  requests_.clear();
  replies_ = {ErrorReply(400, "ExpiredToken"), keys, ErrorReply(400, "ExpiredToken")};
  EXPECT_TRUE(absl::IsUnauthenticated(Client().Put("k", {})));
  EXPECT_THAT(requests_, SizeIs(3));
}

TEST_F(ClientTest, AServerThatRepeatsASecretIsNotQuoted) {
  replies_ = {ErrorReply(400, "Odd", absl::StrCat("<Message>you sent ", kSecret, "</Message>"))};
  const absl::Status status = Client().Put("k", {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("you sent ***"));
}

TEST(TransferThreadsTest, StandBackBehindTheThreadsThatTrain) {
  int policy = -1;
  {
    TransferThreads threads(1);
    threads.Submit([&policy] { policy = sched_getscheduler(0); });
  }
  EXPECT_EQ(policy, SCHED_BATCH);
}

TEST(BackoffTest, TheLimitDoublesUpToItsMaximum) {
  S3Options options;
  EXPECT_EQ(BackoffLimit(options, 1), absl::Milliseconds(100));
  EXPECT_EQ(BackoffLimit(options, 2), absl::Milliseconds(200));
  EXPECT_EQ(BackoffLimit(options, 4), absl::Milliseconds(800));
  EXPECT_EQ(BackoffLimit(options, 1000), absl::Seconds(5));
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::client_test
