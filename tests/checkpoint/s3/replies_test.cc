// Errors of S3 as one line that names the place and says what to do; listings.
#include "checkpoint/storage/s3/replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/s3/fake_transport.h"

namespace dtrain::checkpoint::s3::replies_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Next = ReplyError::Next;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

ReplyError Judge(const HttpReply& reply) {
  S3Settings settings;
  settings.bucket = "bucket";
  settings.region = "us-east-1";
  settings.endpoint = "https://s3.us-east-1.amazonaws.com";
  return JudgeReply(reply, {"read", "s3:GetObject", "s3://bucket/key", "profile work", kNow},
                    settings);
}

TEST(RepliesTest, EachErrorNamesThePlaceAndWhatToDo) {
  struct Case {
    HttpReply reply;
    absl::StatusCode code;
    const char* advice;
  };
  const Case cases[] = {
      {ErrorReply(403, "InvalidAccessKeyId"), absl::StatusCode::kUnauthenticated,
       "check AWS_ACCESS_KEY_ID or the profile"},
      {ErrorReply(403, "SignatureDoesNotMatch"), absl::StatusCode::kUnauthenticated,
       "check AWS_SECRET_ACCESS_KEY"},
      {ErrorReply(403, "InvalidClientTokenId"), absl::StatusCode::kUnauthenticated,
       "check AWS_ACCESS_KEY_ID or the profile"},
      {ErrorReply(404, "NoSuchBucket"), absl::StatusCode::kFailedPrecondition, "no such bucket"},
      {ErrorReply(404, "NoSuchKey"), absl::StatusCode::kNotFound, "no such object"},
      {ErrorReply(403, "AccessDenied"), absl::StatusCode::kPermissionDenied,
       "no permission for it with the keys of profile work; a policy must allow s3:GetObject"},
      {ReplyOf(403), absl::StatusCode::kPermissionDenied, "no permission"},
      {ErrorReply(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"),
       absl::StatusCode::kFailedPrecondition, "region eu-west-3; set AWS_REGION=eu-west-3"},
      {ReplyOf(301, "", {{"x-amz-bucket-region", "ap-south-1"}}),
       absl::StatusCode::kFailedPrecondition, "set AWS_REGION=ap-south-1"},
      {ErrorReply(301, "PermanentRedirect"), absl::StatusCode::kFailedPrecondition,
       "set AWS_REGION"},
      {ErrorReply(507, "InsufficientStorage"), absl::StatusCode::kResourceExhausted, "full"},
      {ErrorReply(412, "PreconditionFailed"), absl::StatusCode::kAlreadyExists,
       "there is an object of this name"},
  };
  for (const Case& test : cases) {
    const ReplyError error = Judge(test.reply);
    EXPECT_EQ(error.next, Next::kFail) << error.status;
    EXPECT_EQ(error.status.code(), test.code) << error.status;
    EXPECT_THAT(std::string(error.status.message()),
                AllOf(HasSubstr("cannot read s3://bucket/key (region us-east-1, endpoint "
                                "https://s3.us-east-1.amazonaws.com): "),
                      HasSubstr(test.advice), Not(HasSubstr("\n"))));
  }
}

TEST(RepliesTest, AClockThatIsOffIsMeasuredByTheServersDate) {
  HttpReply reply = ErrorReply(403, "RequestTimeTooSkewed");
  reply.headers = {{"date", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", kNow - absl::Hours(1),
                                             absl::UTCTimeZone())}};
  const ReplyError error = Judge(reply);
  EXPECT_EQ(error.next, Next::kFail);
  EXPECT_THAT(std::string(error.status.message()),
              AllOf(HasSubstr("clock differs from the server's by 1h, it is ahead"),
                    HasSubstr("set the clock"), HasSubstr("[403 RequestTimeTooSkewed]")));
}

TEST(RepliesTest, OverloadAndDamageOnTheWayAreTriedAgain) {
  for (const HttpReply& reply :
       {ErrorReply(503, "SlowDown"), ReplyOf(500), ReplyOf(502), ReplyOf(429), ReplyOf(504),
        ErrorReply(200, "InternalError"), ErrorReply(400, "XAmzContentSHA256Mismatch"),
        ErrorReply(400, "BadDigest"), ErrorReply(400, "RequestTimeout"),
        ErrorReply(409, "ConditionalRequestConflict")}) {
    const ReplyError error = Judge(reply);
    EXPECT_EQ(error.next, Next::kTryAgain) << error.status;
    EXPECT_TRUE(absl::IsUnavailable(error.status)) << error.status;
  }
  EXPECT_EQ(Judge(ErrorReply(400, "ExpiredToken")).next, Next::kRenewCredentials);
  EXPECT_THAT(std::string(Judge(ErrorReply(400, "ExpiredToken")).status.message()),
              HasSubstr("the session's credentials have expired or are no longer valid; get new"));
}

TEST(RepliesTest, WhatIsKnownIsExplainedWithoutTheServersWords) {
  for (const char* const code : {"AccessDenied", "InvalidAccessKeyId", "NoSuchKey"}) {
    const std::string message(
        Judge(ErrorReply(403, code, "<Message>its own words</Message>")).status.message());
    EXPECT_THAT(message, AllOf(HasSubstr(code), Not(HasSubstr("its own words"))));
  }
}

TEST(RepliesTest, AnUnknownErrorIsToldInTheServersWordsWithoutControlCharacters) {
  const ReplyError error =
      Judge(ErrorReply(400, "Odd\x1b[31m", "<Message>what\nit means</Message>"));
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("[400 Odd?[31m: what?it means]"));
}

TEST(RepliesTest, AnUploadHasAName) {
  EXPECT_EQ(*ParseUploadId("<InitiateMultipartUploadResult><UploadId>u1</UploadId>"
                           "</InitiateMultipartUploadResult>"),
            "u1");
  for (const char* const body : {"<InitiateMultipartUploadResult/>", "<Other/>", ""}) {
    EXPECT_FALSE(ParseUploadId(body).ok()) << body;
  }
}

TEST(RepliesTest, AListingIsReadWithItsEncodingAndItsContinuation) {
  const auto page = ParseObjectPage(
      "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>next</NextContinuationToken>"
      "<Contents><Key>a%2Fb%20c</Key><Size>7</Size></Contents>"
      "<Contents><Key>a+b%2Bc%</Key><Size>8</Size></Contents>"
      "<CommonPrefixes><Prefix>a%2Fd/</Prefix></CommonPrefixes></ListBucketResult>");
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->objects.size(), 2U);
  EXPECT_EQ(page->objects[1].key, "a b+c%");
  EXPECT_EQ(page->objects[0].key, "a/b c");
  EXPECT_EQ(page->objects[0].bytes, 7U);
  EXPECT_THAT(page->prefixes, ElementsAre("a/d/"));
  EXPECT_EQ(page->continuation_token, "next");
  const auto plain = ParseObjectPage(
      "<ListBucketResult><Contents><Key>a%2Fb</Key><Size>7</Size></Contents></ListBucketResult>");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->objects[0].key, "a%2Fb") << "not encoded, as it does not say so";
  EXPECT_FALSE(ParseObjectPage("<Other/>").ok());
  EXPECT_FALSE(ParseObjectPage("<ListBucketResult><IsTruncated>true</IsTruncated>"
                               "</ListBucketResult>")
                   .ok());
  EXPECT_FALSE(ParseObjectPage("<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents>"
                               "</ListBucketResult>")
                   .ok());
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::replies_test
