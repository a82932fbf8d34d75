// SigV4: the signatures that AWS publishes, and those of botocore for random requests.
#include "checkpoint/storage/s3/signature.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numeric/prng.h"
#include "checkpoint/storage/s3/digest.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3::signature_test {
namespace {

const SigningKeys kExampleKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                               ""};

std::string SignatureOf(const RequestToSign& request, const SigningScope& scope,
                        const SigningKeys& keys) {
  const std::string authorization = Authorization(request, scope, keys);
  return authorization.substr(authorization.find("Signature=") + 10);
}

// The examples of "Signature Calculations for the Authorization Header" in S3's API reference.
TEST(SignatureTest, TheExamplesOfS3sReferenceHaveItsSignatures) {
  struct Example {
    std::string method;
    std::string path;
    NamedValues query;
    NamedValues headers;
    std::string body;
    std::string signature;
  };
  const Example examples[] = {
      {"GET",
       "/test.txt",
       {},
       {{"Range", "bytes=0-9"}},
       "",
       "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
      {"PUT",
       "/test$file.text",
       {},
       {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
       "Welcome to Amazon S3.",
       "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
      {"GET",
       "/",
       {{"lifecycle", ""}},
       {},
       "",
       "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
      {"GET",
       "/",
       {{"prefix", "J"}, {"max-keys", "2"}},
       {},
       "",
       "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
  };
  for (const Example& example : examples) {
    RequestToSign request{example.method, example.path, example.query, example.headers,
                          Sha256Hex(BytesOf(example.body))};
    request.headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
    request.headers.emplace_back("x-amz-date", "20130524T000000Z");
    request.headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
    EXPECT_EQ(SignatureOf(request, {"20130524T000000Z", "us-east-1", "s3"}, kExampleKeys),
              example.signature)
        << CanonicalRequest(request);
  }
}

// Cases of aws-sig-v4-test-suite, by their names there.
TEST(SignatureTest, TheSigV4TestSuiteIsMet) {
  struct Case {
    std::string name;
    std::string method;
    NamedValues query;
    NamedValues headers;
    std::string signature;
  };
  const Case cases[] = {
      {"get-vanilla",
       "GET",
       {},
       {},
       "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
      {"get-vanilla-query-order-key-case",
       "GET",
       {{"Param2", "value2"}, {"Param1", "value1"}},
       {},
       "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
      {"get-vanilla-utf8-query",
       "GET",
       {{"\xe1\x88\xb4", "bar"}},
       {},
       "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
      {"get-header-value-trim",
       "GET",
       {},
       {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
       "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
      {"get-header-value-order",
       "GET",
       {},
       {{"My-Header1", "value4"},
        {"My-Header1", "value1"},
        {"My-Header1", "value3"},
        {"My-Header1", "value2"}},
       "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
      {"post-vanilla",
       "POST",
       {},
       {},
       "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
      {"post-header-value-case",
       "POST",
       {},
       {{"My-Header1", "VALUE1"}},
       "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
  };
  const SigningKeys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  for (const Case& test : cases) {
    RequestToSign request{test.method, "/", test.query, test.headers, Sha256Hex({})};
    request.headers.emplace_back("Host", "example.amazonaws.com");
    request.headers.emplace_back("X-Amz-Date", "20150830T123600Z");
    EXPECT_EQ(SignatureOf(request, {"20150830T123600Z", "us-east-1", "service"}, keys),
              test.signature)
        << test.name << "\n"
        << CanonicalRequest(request);
  }
}

std::string RandomText(SplitMix64& random, absl::string_view alphabet, uint64_t bytes_max) {
  std::string text;
  for (uint64_t n = 1 + random.Below(bytes_max); n > 0; --n) {
    text.push_back(alphabet[random.Below(alphabet.size())]);
  }
  return text;
}

// One random request: signed here, and as JSON for botocore.
std::string AddRandomCase(SplitMix64& random, Json& cases) {
  constexpr absl::string_view kOdd = "abcXYZ019-._~ !\"#$%&'()*+,:;<=>?@[]^`{|}\\\xc3\xa9";
  constexpr absl::string_view kPlain = "abcXYZ019-._/";
  constexpr const char* kMethods[] = {"GET", "PUT", "POST", "DELETE", "HEAD"};
  RequestToSign request;
  request.method = kMethods[random.Below(5)];
  request.path = "/bucket";
  for (uint64_t parts = random.Below(4); parts > 0; --parts) {
    absl::StrAppend(&request.path, "/", RandomText(random, kOdd, 12));
  }
  for (uint64_t names = random.Below(4); names > 0; --names) {
    request.query.emplace_back(RandomText(random, kOdd, 8),
                               random.Below(3) == 0 ? "" : RandomText(random, kOdd, 8));
  }
  for (uint64_t names = random.Below(3); names > 0; --names) {
    request.headers.emplace_back(absl::StrCat("x-amz-meta-", names),
                                 RandomText(random, kPlain, 20));
  }
  const std::string body = random.Below(2) == 0 ? "" : RandomText(random, kOdd, 100);
  request.payload_sha256 = Sha256Hex(BytesOf(body));
  const std::string token = random.Below(2) == 0 ? "" : RandomText(random, kPlain, 60);
  const SigningKeys keys{RandomText(random, kPlain, 20), RandomText(random, kPlain, 40), token};
  const SigningScope scope{
      AmzTime(absl::FromUnixSeconds(static_cast<int64_t>(random.Below(4'000'000'000)))),
      random.Below(2) == 0 ? "us-east-1" : "eu-west-3", "s3"};
  cases.push_back(
      {{"method", request.method},
       {"url",
        absl::StrCat("http://127.0.0.1:9000", PercentEncode(request.path, /*keep_slash=*/true),
                     request.query.empty() ? "" : "?", EncodeQuery(request.query))},
       {"headers", request.headers},
       {"body", absl::BytesToHexString(body)},
       {"time", scope.time},
       {"region", scope.region},
       {"id", keys.access_key_id},
       {"secret", keys.secret_access_key},
       {"token", token}});
  request.headers.emplace_back("host", "127.0.0.1:9000");
  request.headers.emplace_back("x-amz-date", scope.time);
  request.headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  if (!token.empty()) {
    request.headers.emplace_back("x-amz-security-token", token);
  }
  return Authorization(request, scope, keys);
}

TEST(SignatureTest, RandomRequestsAreSignedAsBotocoreSignsThem) {
  SplitMix64 random(7);
  Json cases = Json::array();
  std::vector<std::string> ours;
  for (int i = 0; i < 300; ++i) {
    ours.push_back(AddRandomCase(random, cases));
  }
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cases.json";
  ASSERT_TRUE(WriteFileAtomic(path, DumpJson(cases)).ok());
  const std::string command = absl::StrCat("\"", S3_PYTHON, "\" \"", SIGN_SCRIPT, "\" ", path);
  FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) {
    output.append(buffer, n);
  }
  ASSERT_EQ(pclose(pipe), 0) << command;
  const std::vector<std::string> theirs =
      absl::StrSplit(absl::StripTrailingAsciiWhitespace(output), '\n');
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i], theirs[i]) << cases[i];
  }
}

TEST(SignatureTest, AChecksumHasItsHighestByteFirst) {
  EXPECT_EQ(Crc32cBase64(BytesOf("123456789")), "4waSgw==") << "0xe3069283";
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::signature_test
