// Fuzz target for what a server of S3 sends: XML of listings and errors, and the profiles of a
// user's files. A text that parses is within its limits and means the same when written again.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/replies.h"
#include "checkpoint/storage/s3/xml.h"
#include "tests/fuzz/fuzz_target.h"

using namespace dtrain::checkpoint::s3;  // NOLINT(google-build-using-namespace): a small program.

namespace {

std::string Write(const XmlElement& element, size_t depth) {
  DT_CHECK(depth <= kXmlDepthMax);
  std::string text = absl::StrReplaceAll(element.text, {{"&", "&amp;"}, {"<", "&lt;"}});
  for (const XmlElement& child : element.children) {
    absl::StrAppend(&text, Write(child, depth + 1));
  }
  return absl::StrCat("<", element.name, ">", text, "</", element.name, ">");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto root = ParseXml(text); root.ok()) {
    const std::string once = Write(*root, 1);
    const auto again = ParseXml(once);
    DT_CHECK(again.ok()) << again.status().ToString() << " in " << once;
    DT_CHECK_EQ(Write(*again, 1), once);
  }
  ParseObjectPage(text).status().IgnoreError();
  ParseUploadPage(text).status().IgnoreError();
  ParseUploadId(text).status().IgnoreError();
  HttpReply reply;
  reply.code = size % 2 == 0 ? 403 : 400;
  reply.body = text;
  RequestPlace place{"read", "s3:GetObject", "s3://b/k", "profile default", absl::UnixEpoch()};
  const ReplyError error = JudgeReply(reply, place, S3Settings());
  DT_CHECK(!error.status.ok());
  DT_CHECK(error.status.message().find('\n') == absl::string_view::npos) << error.status.message();
  ParseAwsFile(text, size % 2 == 0);
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t"
      "</NextContinuationToken><Contents><Key>a%2Fb</Key><Size>12</Size></Contents>"
      "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes></ListBucketResult>",
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<Upload><Key>k</Key><UploadId>&lt;u&#233;</UploadId></Upload></ListMultipartUploadsResult>",
      "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message><Region>eu</Region></"
      "Error>",
      "[default]\naws_access_key_id = a\n# c\n[profile b]\nregion=eu-west-1\ns3 =\n  x = y\n",
  };
}
