#include "runtime/data/remote/range_reply.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain::remote::range_reply_test {
namespace {

using checkpoint::s3::HttpReply;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAddress[] = "https://host/train.bin";

HttpReply ReplyOf(int code, const std::string& content_range, size_t bytes) {
  HttpReply reply;
  reply.code = code;
  reply.headers = {{"content-range", content_range}, {"etag", "\"a1\""}};
  reply.into_bytes = bytes;
  return reply;
}

TEST(RangeReplyTest, ThePieceAndTheFilesLengthAndVersionAreRead) {
  const auto piece = PieceOfReply(ReplyOf(206, "bytes 10-19/400", 10), kAddress, 10, 10);
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->version, (ObjectVersion{400, "\"a1\""}));
  EXPECT_EQ(piece->bytes_read, 10);
  // The file ends within what was asked for.
  EXPECT_EQ(PieceOfReply(ReplyOf(206, "bytes 390-399/400", 10), kAddress, 390, 64)->bytes_read, 10);
}

TEST(RangeReplyTest, WithoutAnEtagTheTimeOfTheLastChangeIsTheVersion) {
  HttpReply reply = ReplyOf(206, "bytes 0-9/10", 10);
  reply.headers = {{"content-range", "bytes 0-9/10"}, {"last-modified", "Sat, 01 Aug 2026"}};
  EXPECT_EQ(PieceOfReply(reply, kAddress, 0, 10)->version.tag, "Sat, 01 Aug 2026");
}

TEST(RangeReplyTest, AShortReplyIsTriedAgain) {
  EXPECT_EQ(PieceOfReply(ReplyOf(206, "bytes 0-9/10", 7), kAddress, 0, 10).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(RangeReplyTest, RepliesThatAreNoRangeAreRefused) {
  for (const char* const text : {"", "bytes 0-9/*", "bytes */10", "bytes 5-9/10", "bytes 0-9/9",
                                 "bytes 0-9", "0-9/10", "bytes 9-0/10", "bytes a-9/10"}) {
    const absl::Status status = PieceOfReply(ReplyOf(206, text, 10), kAddress, 0, 10).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kAddress));
  }
  const absl::Status whole = PieceOfReply(ReplyOf(200, "", 10), kAddress, 0, 10).status();
  EXPECT_THAT(std::string(whole.message()), HasSubstr("does not serve ranges"));
}

TEST(RangeReplyTest, OnlyErrorsThatMayPassAreTriedAgain) {
  const struct {
    int code;
    absl::StatusCode status;
  } cases[] = {
      {404, absl::StatusCode::kNotFound},         {410, absl::StatusCode::kNotFound},
      {401, absl::StatusCode::kPermissionDenied}, {403, absl::StatusCode::kPermissionDenied},
      {408, absl::StatusCode::kUnavailable},      {429, absl::StatusCode::kUnavailable},
      {500, absl::StatusCode::kUnavailable},      {503, absl::StatusCode::kUnavailable},
      {416, absl::StatusCode::kOutOfRange},       {400, absl::StatusCode::kFailedPrecondition}};
  for (const auto& one : cases) {
    const absl::Status status = JudgeWebReply(ReplyOf(one.code, "", 0), kAddress);
    EXPECT_EQ(status.code(), one.status) << one.code;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(one.code)));
  }
}

TEST(RangeReplyTest, RedirectionsAreFollowedButNotToWhatIsLessSecure) {
  const auto to = [](const std::string& location, const std::string& from) {
    HttpReply reply;
    reply.code = 302;
    reply.headers = {{"location", location}};
    return RedirectionOf(reply, from);
  };
  EXPECT_EQ(*to("https://cdn/x?a=b", kAddress), "https://cdn/x?a=b");
  EXPECT_EQ(*to("/y", kAddress), "https://host/y");
  EXPECT_EQ(*to("//cdn/y", kAddress), "https://cdn/y");
  EXPECT_EQ(*to("/y", "http://host:80?q"), "http://host:80/y");
  for (const char* const location : {"http://cdn/x", "file:///etc/passwd", "y", ""}) {
    EXPECT_FALSE(to(location, kAddress).ok()) << location;
  }
}

TEST(RangeReplyTest, AddressesWithSecretsAreRefusedWithoutRepeatingThem) {
  for (const char* const address :
       {"https://user:canary@host/x", "https://host/x?X-Amz-Signature=canary",
        "https://host/x?a=b&sig=canary", "https://host/x?token=canary",
        "https://host/x?api_key=canary", "https://host/x?password=canary"}) {
    const absl::Status status = plan::CheckRemoteAddress(address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("canary")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("host"));
  }
  for (const char* const address : {"s3://bucket/a@b", "https://host/x?v=1", "http://host:80/x"}) {
    EXPECT_TRUE(plan::CheckRemoteAddress(address).ok()) << address;
  }
  EXPECT_THAT(std::string(plan::CheckRemoteAddress("gs://bucket/x").message()),
              HasSubstr("allowed are"));
}

}  // namespace
}  // namespace dtrain::remote::range_reply_test
