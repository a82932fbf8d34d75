// The sources of credentials, in their order; their renewal; no secret in any message.
#include "checkpoint/storage/s3/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "tests/checkpoint/s3/fake_transport.h"
#include "tests/checkpoint/s3/s3_server.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3::credentials_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCanary[] = "canary/Secret+Value";

std::string JsonReply(const std::string& id, absl::Time expires) {
  return absl::StrCat(R"({"Code": "Success", "AccessKeyId": ")", id, R"(", "SecretAccessKey": ")",
                      kCanary, R"(", "Token": "canary-token", "Expiration": ")",
                      absl::FormatTime(absl::RFC3339_sec, expires, absl::UTCTimeZone()), "\"}");
}

class CredentialsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Credentials> Get(const Environment& environment, const AwsProfile& profile = {}) {
    CredentialProvider provider(environment, {"default", false, profile}, "eu-west-1", transport_,
                                clock_);
    auto credentials = provider.Get();
    EXPECT_THAT(credentials.status().ToString(), Not(HasSubstr("canary")));
    return credentials;
  }

  // By URL; a URL that is not there is not reachable.
  std::map<std::string, HttpReply> replies_;
  FakeTransport transport_{[this](const HttpRequest& request) -> absl::StatusOr<HttpReply> {
    const auto found = replies_.find(request.url);
    if (found == replies_.end()) {
      return absl::UnavailableError("connection refused");
    }
    return found->second;
  }};
  FakeClock clock_;
  const Environment no_instance_ = {{"AWS_EC2_METADATA_DISABLED", "true"}};
};

TEST_F(CredentialsTest, TheEnvironmentComesFirst) {
  const auto credentials = Get({{"AWS_ACCESS_KEY_ID", "id"},
                                {"AWS_SECRET_ACCESS_KEY", kCanary},
                                {"AWS_SESSION_TOKEN", "canary-token"}},
                               {{"aws_access_key_id", "p"}, {"aws_secret_access_key", "q"}});
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->keys.access_key_id, "id");
  EXPECT_EQ(credentials->keys.session_token, "canary-token");
  const auto half = Get({{"AWS_SECRET_ACCESS_KEY", kCanary}});
  EXPECT_EQ(half.status().message(), "AWS_SECRET_ACCESS_KEY is set, but not AWS_ACCESS_KEY_ID");
  EXPECT_TRUE(transport_.seen().empty());
}

TEST_F(CredentialsTest, TheProfileComesNextAndNamesWhatItCannotDo) {
  const auto credentials =
      Get(no_instance_, {{"aws_access_key_id", "p"}, {"aws_secret_access_key", kCanary}});
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->keys.access_key_id, "p");
  EXPECT_EQ(credentials->origin, "profile default");
  const auto sso = Get(no_instance_, {{"sso_session", "x"}});
  EXPECT_THAT(std::string(sso.status().message()),
              HasSubstr("gets its credentials by sso_session, which dtrain does not do; put them "
                        "into the environment with `aws configure export-credentials"));
}

TEST_F(CredentialsTest, WithoutAnyTheErrorSaysWhereItLooked) {
  const auto none = Get(no_instance_);
  EXPECT_TRUE(absl::IsUnauthenticated(none.status()));
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("no credentials were found: AWS_ACCESS_KEY_ID is not set"));
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("(AWS_EC2_METADATA_DISABLED is set)"));
  EXPECT_TRUE(transport_.seen().empty()) << "the instance's metadata are not to be asked";
  Get({{"AWS_EC2_METADATA_DISABLED", "false"}}).IgnoreError();
  EXPECT_FALSE(transport_.seen().empty());
}

TEST_F(CredentialsTest, WebIdentityTradesTheTokenOfAFile) {
  const TemporaryFolder folder;
  DT_CHECK_OK(WriteFileAtomic(folder.path() + "/token", "canary.web.token\n"));
  replies_["https://sts.eu-west-1.amazonaws.com/"] = ReplyOf(
      200, absl::StrCat(
               "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
               "<AccessKeyId>web</AccessKeyId><SecretAccessKey>",
               kCanary,
               "</SecretAccessKey><SessionToken>canary-token</SessionToken>"
               "<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>"
               "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"));
  const Environment environment = {{"AWS_WEB_IDENTITY_TOKEN_FILE", folder.path() + "/token"},
                                   {"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"}};
  const auto credentials = Get(environment);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(credentials->keys.access_key_id, "web");
  EXPECT_EQ(credentials->expires, absl::FromUnixSeconds(4'102'444'800));
  EXPECT_THAT(transport_.everything(), HasSubstr("WebIdentityToken=canary.web.token"));
  replies_["https://sts.eu-west-1.amazonaws.com/"] = ReplyOf(403, "canary");
  EXPECT_TRUE(absl::IsUnauthenticated(Get(environment).status()));
  EXPECT_TRUE(absl::IsNotFound(
      Get({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing/there"}, {"AWS_ROLE_ARN", "r"}}).status()));
}

TEST_F(CredentialsTest, AContainersEndpointIsAskedWithItsToken) {
  replies_["http://169.254.170.2/v2/x"] =
      ReplyOf(200, JsonReply("task", absl::FromUnixSeconds(4'102'444'800)));
  const auto credentials = Get({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x"},
                                {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "canary-authorization"}});
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(credentials->keys.access_key_id, "task");
  EXPECT_THAT(transport_.everything(), HasSubstr("Authorization: canary-authorization"));
  for (const char* const far :
       {"http://example.com/x", "http://127.0.0.1@example.com/x", "file:///x"}) {
    const size_t before = transport_.seen().size();
    EXPECT_TRUE(
        absl::IsUnauthenticated(Get({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", far}}).status()));
    EXPECT_EQ(transport_.seen().size(), before) << far << " was asked in the clear";
  }
}

TEST_F(CredentialsTest, TheInstancesMetadataAreAskedInTheirSecondVersion) {
  const std::string host = "http://169.254.169.254/latest/";
  replies_[host + "api/token"] = ReplyOf(200, "canary-imds");
  replies_[host + "meta-data/iam/security-credentials/"] = ReplyOf(200, " my-role\nanother-role\n");
  replies_[host + "meta-data/iam/security-credentials/my-role"] =
      ReplyOf(200, JsonReply("instance", absl::FromUnixSeconds(4'102'444'800)));
  const auto credentials = Get({});
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(credentials->keys.access_key_id, "instance");
  EXPECT_THAT(transport_.seen(),
              ElementsAre("PUT " + host + "api/token",
                          "GET " + host + "meta-data/iam/security-credentials/",
                          "GET " + host + "meta-data/iam/security-credentials/my-role"));
  EXPECT_THAT(transport_.everything(), HasSubstr("X-aws-ec2-metadata-token: canary-imds"));
}

TEST_F(CredentialsTest, WhatExpiresIsFetchedAnewInTime) {
  const std::string url = "http://127.0.0.1:1/x";
  const absl::Time expires = clock_.WallTime() + absl::Hours(1);
  replies_[url] = ReplyOf(200, JsonReply("first", expires));
  CredentialProvider provider({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url}}, {}, "r", transport_,
                              clock_);
  EXPECT_EQ(provider.Get()->keys.access_key_id, "first");
  clock_.Advance(absl::Minutes(50));
  replies_[url] = ReplyOf(200, JsonReply("second", expires + absl::Hours(1)));
  EXPECT_EQ(provider.Get()->keys.access_key_id, "first");
  EXPECT_EQ(transport_.seen().size(), 1U);
  clock_.Advance(absl::Minutes(6));
  const HttpReply second = replies_[url];
  replies_.clear();
  EXPECT_EQ(provider.Get()->keys.access_key_id, "first") << "not reachable, but they still hold";
  replies_[url] = second;
  EXPECT_EQ(provider.Get()->keys.access_key_id, "second");
  replies_[url] = ReplyOf(200, JsonReply("third", expires + absl::Hours(2)));
  EXPECT_TRUE(provider.Forget());
  EXPECT_EQ(provider.Get()->keys.access_key_id, "third");
}

TEST_F(CredentialsTest, WebIdentityWorksWithARealTokenService) {
  const TemporaryFolder folder;
  DT_CHECK_OK(WriteFileAtomic(folder.path() + "/token", "some.web.token"));
  const Environment environment = {
      {"AWS_WEB_IDENTITY_TOKEN_FILE", folder.path() + "/token"},
      {"AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/training"},
      {"AWS_ENDPOINT_URL_STS", S3Server::Of(S3Server::Kind::kMoto).endpoint()}};
  const auto transport = MakeCurlTransport("");
  ASSERT_TRUE(transport.ok());
  CredentialProvider provider(environment, {}, "us-east-1", **transport, Clock::Real());
  const auto credentials = provider.Get();
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_THAT(credentials->keys.access_key_id, ::testing::StartsWith("ASIA"));
  EXPECT_FALSE(credentials->keys.session_token.empty());
  EXPECT_LT(credentials->expires, absl::InfiniteFuture());
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::credentials_test
