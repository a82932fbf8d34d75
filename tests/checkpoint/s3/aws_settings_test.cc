// Where requests go: addresses, options, environment, the files of the AWS tools, in their order.
#include "checkpoint/storage/s3/aws_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3::aws_settings_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<S3Settings> Resolve(const S3Options& options, const Environment& environment,
                                   const AwsProfile& profile, const std::string& bucket = "b-1") {
  return ResolveSettings({bucket, "p"}, options, environment, profile);
}

TEST(S3UrlTest, BucketAndPrefixAreSplit) {
  EXPECT_EQ(ParseS3Url("s3://my-bucket")->bucket, "my-bucket");
  EXPECT_EQ(ParseS3Url("s3://my-bucket/")->prefix, "");
  EXPECT_EQ(ParseS3Url("s3://my.bucket/runs/a b//")->prefix, "runs/a b");
  for (const char* const wrong :
       {"s3:/bucket", "s3://", "s3://ab", "s3://UPPER", "s3://under_score/x", "s3://-ab/x",
        "s3://a..b/x", "s3://bucket//x", "s3://bucket/a/../b", "s3://bucket/./a",
        "s3://bucket/a\nb", "/local/folder"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseS3Url(wrong).status())) << wrong;
  }
}

TEST(AwsSettingsTest, OptionsWinOverTheEnvironmentAndThatOverTheProfile) {
  const AwsProfile profile = {{"region", "eu-west-3"}, {"endpoint_url", "http://profile:1"}};
  Environment environment;
  S3Options options;
  EXPECT_EQ(Resolve(options, environment, {})->region, "us-east-1");
  EXPECT_EQ(Resolve(options, environment, profile)->region, "eu-west-3");
  EXPECT_EQ(Resolve(options, environment, profile)->endpoint, "http://profile:1");
  environment = {{"AWS_DEFAULT_REGION", "eu-west-1"}, {"AWS_ENDPOINT_URL", "http://general:1/"}};
  EXPECT_EQ(Resolve(options, environment, profile)->region, "eu-west-1");
  EXPECT_EQ(Resolve(options, environment, profile)->endpoint, "http://general:1");
  environment["AWS_REGION"] = "eu-west-2";
  environment["AWS_ENDPOINT_URL_S3"] = "http://special:1";
  EXPECT_EQ(Resolve(options, environment, profile)->region, "eu-west-2");
  EXPECT_EQ(Resolve(options, environment, profile)->endpoint, "http://special:1");
  options.region = "ap-south-1";
  options.endpoint = "https://option:443";
  EXPECT_EQ(Resolve(options, environment, profile)->region, "ap-south-1");
  EXPECT_EQ(Resolve(options, environment, profile)->endpoint, "https://option")
      << "HTTP leaves the usual port out of the host";
}

TEST(AwsSettingsTest, TheBucketIsPartOfTheHostOnlyWhereThatWorks) {
  S3Options options;
  options.region = "eu-west-1";
  const auto aws = Resolve(options, {}, {});
  EXPECT_EQ(aws->endpoint, "https://s3.eu-west-1.amazonaws.com");
  EXPECT_FALSE(aws->path_style);
  EXPECT_TRUE(Resolve(options, {}, {}, "with.dot")->path_style) << "no certificate has its name";
  options.region = "cn-north-1";
  EXPECT_EQ(Resolve(options, {}, {})->endpoint, "https://s3.cn-north-1.amazonaws.com.cn");
  options.endpoint = "http://minio:9000";
  EXPECT_TRUE(Resolve(options, {}, {})->path_style);
  options.path_style = false;
  EXPECT_FALSE(Resolve(options, {}, {})->path_style);
}

TEST(AwsSettingsTest, AnEndpointWithAPasswordIsRefusedWithoutRepeatingIt) {
  S3Options options;
  options.endpoint = "http://user:canary-password@host:9000";
  const auto settings = Resolve(options, {}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(settings.status()));
  EXPECT_THAT(std::string(settings.status().message()), Not(HasSubstr("canary")));
  EXPECT_THAT(std::string(settings.status().message()),
              HasSubstr("keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
  for (const char* const wrong : {"host:9000", "ftp://host", "http://", "http://host/path",
                                  "http://host name", "http://host?x"}) {
    options.endpoint = wrong;
    EXPECT_TRUE(absl::IsInvalidArgument(Resolve(options, {}, {}).status())) << wrong;
  }
  options.endpoint = "";
  options.region = "eu/west";
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve(options, {}, {}).status()));
}

TEST(AwsFileTest, SectionsCommentsAndNestedSettingsAreTold) {
  const auto config = ParseAwsFile(
      "# c\n[default]\nRegion = eu-west-1 \n; c\n[profile work]\nregion=us-west-2\n"
      "s3 =\n  addressing_style = path\n\taws_access_key_id = nested\n[sso-session x]\n"
      "region = no\n[plain]\nregion = no\nnot a setting\n",
      /*is_config=*/true);
  EXPECT_EQ(config.size(), 2U);
  EXPECT_EQ(config.at("default").at("region"), "eu-west-1");
  EXPECT_EQ(config.at("work").at("region"), "us-west-2");
  EXPECT_FALSE(config.at("work").contains("aws_access_key_id"));
  EXPECT_TRUE(ParseAwsFile("[plain]\nx=y=z\r\n", /*is_config=*/false).at("plain").at("x") == "y=z");
}

TEST(AwsFileTest, TheProfileIsThatOfAwsProfileInBothFiles) {
  const TemporaryFolder home;
  std::filesystem::create_directory(home.path() + "/.aws");
  Environment environment = {{"HOME", home.path()}};
  EXPECT_TRUE(FindProfile(environment)->values.empty()) << "no files";
  DT_CHECK_OK(WriteFileAtomic(home.path() + "/.aws/credentials",
                              "[default]\naws_access_key_id=d\n[work]\naws_access_key_id=w\n"));
  DT_CHECK_OK(WriteFileAtomic(home.path() + "/.aws/config",
                              "[profile work]\nregion=eu-west-1\naws_access_key_id=config\n"));
  EXPECT_EQ(FindProfile(environment)->values.at("aws_access_key_id"), "d");
  environment["AWS_PROFILE"] = "work";
  const auto work = FindProfile(environment);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->values.at("aws_access_key_id"), "w") << "the credentials file wins";
  EXPECT_EQ(work->values.at("region"), "eu-west-1");
  environment["AWS_PROFILE"] = "wrk";
  const auto missing = FindProfile(environment);
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("AWS_PROFILE names the profile \"wrk\", which neither "));
  environment["AWS_SHARED_CREDENTIALS_FILE"] = home.path() + "/other";
  DT_CHECK_OK(WriteFileAtomic(home.path() + "/other", "[wrk]\naws_access_key_id=o\n"));
  EXPECT_EQ(FindProfile(environment)->values.at("aws_access_key_id"), "o");
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::aws_settings_test
