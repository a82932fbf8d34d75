#include "checkpoint/storage/s3/replies.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text/text.h"
#include "checkpoint/storage/s3/xml.h"

namespace dtrain::checkpoint::s3 {
namespace {

using Next = ReplyError::Next;

struct ErrorBody {
  std::string code;
  std::string message;
  std::string region;
};

ErrorBody ParseErrorBody(const std::string& body) {
  constexpr size_t kMessageBytesMax = 200;
  const auto root = ParseXml(body);
  ErrorBody error;
  if (root.ok() && root->name == "Error") {
    error.code = Printable(root->TextOf("Code").substr(0, kMessageBytesMax));
    error.message = Printable(root->TextOf("Message").substr(0, kMessageBytesMax));
    error.region = Printable(root->TextOf("Region").substr(0, kMessageBytesMax));
  }
  return error;
}

// An error code of S3's, and what dtrain knows about it.
struct KnownError {
  absl::string_view code;
  absl::StatusCode status;
  absl::string_view text;
};

constexpr absl::string_view kWrongKey =
    "the access key is not known there; check AWS_ACCESS_KEY_ID or the profile";
constexpr absl::string_view kExpired =
    "the session's credentials have expired or are no longer valid; get new ones";
constexpr absl::string_view kSlow = "the server is overloaded or has an internal error";
constexpr absl::string_view kBroken = "what arrived differs from what was sent";
constexpr absl::string_view kBadName = "the name of the bucket or key is not allowed there";

constexpr KnownError kKnown[] = {
    {"InvalidAccessKeyId", absl::StatusCode::kUnauthenticated, kWrongKey},
    {"InvalidClientTokenId", absl::StatusCode::kUnauthenticated, kWrongKey},
    {"SignatureDoesNotMatch", absl::StatusCode::kUnauthenticated,
     "the secret key does not belong to the access key; check AWS_SECRET_ACCESS_KEY or the "
     "profile"},
    {"ExpiredToken", absl::StatusCode::kUnauthenticated, kExpired},
    {"InvalidToken", absl::StatusCode::kUnauthenticated, kExpired},
    {"TokenRefreshRequired", absl::StatusCode::kUnauthenticated, kExpired},
    {"NoSuchBucket", absl::StatusCode::kFailedPrecondition,
     "there is no such bucket; check its name, and make it if it is new"},
    {"NoSuchKey", absl::StatusCode::kNotFound, "there is no such object"},
    {"NoSuchUpload", absl::StatusCode::kAborted, "the upload was aborted or is complete"},
    {"InvalidBucketName", absl::StatusCode::kInvalidArgument, kBadName},
    {"KeyTooLongError", absl::StatusCode::kInvalidArgument, kBadName},
    {"InvalidRange", absl::StatusCode::kOutOfRange, "the object ends before"},
    {"PreconditionFailed", absl::StatusCode::kAlreadyExists, "there is an object of this name"},
    {"ConditionalRequestConflict", absl::StatusCode::kUnavailable,
     "another request writes this object"},
    {"OperationAborted", absl::StatusCode::kUnavailable, "another request writes this object"},
    {"InsufficientStorage", absl::StatusCode::kResourceExhausted, "the store is full"},
    {"QuotaExceeded", absl::StatusCode::kResourceExhausted, "the quota is used up"},
    {"XMinioStorageFull", absl::StatusCode::kResourceExhausted, "the store is full"},
    {"BadDigest", absl::StatusCode::kUnavailable, kBroken},
    {"XAmzContentSHA256Mismatch", absl::StatusCode::kUnavailable, kBroken},
    {"IncompleteBody", absl::StatusCode::kUnavailable, kBroken},
    {"RequestTimeout", absl::StatusCode::kUnavailable, kSlow},
    {"InternalError", absl::StatusCode::kUnavailable, kSlow},
    {"SlowDown", absl::StatusCode::kUnavailable, kSlow},
    {"SlowDownRead", absl::StatusCode::kUnavailable, kSlow},
    {"SlowDownWrite", absl::StatusCode::kUnavailable, kSlow},
    {"ServiceUnavailable", absl::StatusCode::kUnavailable, kSlow},
    {"NotImplemented", absl::StatusCode::kFailedPrecondition,
     "the store does not support this request"},
};

bool IsSkewed(const ErrorBody& error) {
  return error.code == "RequestTimeTooSkewed" || error.code == "RequestExpired";
}

bool IsOtherRegion(const HttpReply& reply, const ErrorBody& error) {
  return error.code == "AuthorizationHeaderMalformed" || error.code == "PermanentRedirect" ||
         error.code == "TemporaryRedirect" || error.code == "IllegalLocationConstraintException" ||
         reply.code == 301 || reply.code == 307;
}

absl::Status SkewStatus(const HttpReply& reply, const RequestPlace& place) {
  absl::Time server;
  std::string unused;
  std::string by;
  if (absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", reply.HeaderOf("date"), &server, &unused)) {
    const absl::Duration off = place.sent_at - server;
    by = absl::StrCat(" by ",
                      absl::FormatDuration(absl::Trunc(absl::AbsDuration(off), absl::Seconds(1))),
                      off > absl::ZeroDuration() ? ", it is ahead" : ", it is behind");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this machine's clock differs from the server's", by,
                   "; set the clock, for example with `chronyc makestep`"));
}

absl::Status RegionStatus(const HttpReply& reply, const ErrorBody& error,
                          const S3Settings& settings) {
  const std::string region =
      error.region.empty() ? Printable(reply.HeaderOf("x-amz-bucket-region")) : error.region;
  if (region.empty() || region == settings.region) {
    return absl::FailedPreconditionError(
        "the bucket is in another region or at another endpoint; set AWS_REGION, or "
        "AWS_ENDPOINT_URL_S3, to where it is");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the bucket is in region ", region, "; set AWS_REGION=", region));
}

absl::Status StatusOfCode(const HttpReply& reply, const RequestPlace& place) {
  if (reply.code == 404) {
    return absl::NotFoundError("there is no such object");
  }
  if (reply.code == 401 || reply.code == 403) {
    return absl::PermissionDeniedError(absl::StrCat("no permission for it with the keys of ",
                                                    place.credentials_origin,
                                                    "; a policy must allow ", place.permission));
  }
  if (reply.code == 412) {
    return absl::AlreadyExistsError("there is an object of this name");
  }
  if (reply.code == 416) {
    return absl::OutOfRangeError("the object ends before");
  }
  if (reply.code == 507) {
    return absl::ResourceExhaustedError("the store is full");
  }
  if (reply.code == 409 || reply.code == 429 || reply.code >= 500) {
    return absl::UnavailableError(kSlow);
  }
  return absl::FailedPreconditionError("the reply was not expected");
}

absl::StatusOr<XmlElement> ParseRoot(const std::string& body, absl::string_view name) {
  DT_ASSIGN_OR_RETURN(XmlElement root, ParseXml(body));
  if (root.name != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reply is a <", Printable(root.name), ">, not a <", name, ">"));
  }
  return root;
}

// `text` without its percent-encoding.
std::string PercentDecode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2])) &&
        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      decoded.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      decoded.push_back(text[i] == '+' ? ' ' : text[i]);
    }
  }
  return decoded;
}

}  // namespace

std::string FailedRequest(const RequestPlace& place, const S3Settings& settings) {
  return absl::StrCat("cannot ", place.action, " ", place.url, " (region ", settings.region,
                      ", endpoint ", settings.endpoint, ")");
}

ReplyError JudgeReply(const HttpReply& reply, const RequestPlace& place,
                      const S3Settings& settings) {
  const ErrorBody error = ParseErrorBody(reply.body);
  ReplyError judged;
  judged.code = error.code;
  const auto* const known =
      std::find_if(std::begin(kKnown), std::end(kKnown),
                   [&](const KnownError& entry) { return entry.code == error.code; });
  absl::Status status;
  bool explained = true;
  if (IsSkewed(error)) {
    status = SkewStatus(reply, place);
  } else if (IsOtherRegion(reply, error)) {
    status = RegionStatus(reply, error, settings);
  } else if (known != std::end(kKnown)) {
    status = absl::Status(known->status, known->text);
  } else {
    status = StatusOfCode(reply, place);
    explained = !absl::IsFailedPrecondition(status);
  }
  if (absl::IsUnavailable(status)) {
    judged.next = Next::kTryAgain;
  } else if (known != std::end(kKnown) && known->text == kExpired) {
    judged.next = Next::kRenewCredentials;
  }
  // A code that is not known is explained by the server's own words.
  const std::string origin = absl::StrCat(
      " [", reply.code, error.code.empty() ? "" : " ", error.code,
      explained || error.message.empty() ? "" : absl::StrCat(": ", error.message), "]");
  judged.status = absl::Status(
      status.code(), absl::StrCat(FailedRequest(place, settings), ": ", status.message(), origin));
  return judged;
}

absl::StatusOr<ObjectPage> ParseObjectPage(const std::string& body) {
  DT_ASSIGN_OR_RETURN(const XmlElement root, ParseRoot(body, "ListBucketResult"));
  const bool encoded = root.TextOf("EncodingType") == "url";
  const auto key = [encoded](const std::string& text) {
    return encoded ? PercentDecode(text) : text;
  };
  ObjectPage page;
  for (const XmlElement& element : root.children) {
    if (element.name == "Contents") {
      ListedObject object;
      object.key = key(element.TextOf("Key"));
      if (!absl::SimpleAtoi(element.TextOf("Size"), &object.bytes)) {
        return absl::InvalidArgumentError("a listed object has no size");
      }
      page.objects.push_back(std::move(object));
    } else if (element.name == "CommonPrefixes") {
      page.prefixes.push_back(key(element.TextOf("Prefix")));
    }
  }
  if (root.TextOf("IsTruncated") == "true") {
    page.continuation_token = root.TextOf("NextContinuationToken");
    if (page.continuation_token.empty()) {
      return absl::InvalidArgumentError("a list is cut off, and says not where it goes on");
    }
  }
  return page;
}

absl::StatusOr<UploadPage> ParseUploadPage(const std::string& body) {
  DT_ASSIGN_OR_RETURN(const XmlElement root, ParseRoot(body, "ListMultipartUploadsResult"));
  UploadPage page;
  for (const XmlElement& element : root.children) {
    if (element.name == "Upload") {
      page.uploads.push_back({element.TextOf("Key"), element.TextOf("UploadId")});
    }
  }
  if (root.TextOf("IsTruncated") == "true") {
    page.key_marker = root.TextOf("NextKeyMarker");
    page.upload_id_marker = root.TextOf("NextUploadIdMarker");
  }
  return page;
}

absl::StatusOr<std::string> ParseUploadId(const std::string& body) {
  DT_ASSIGN_OR_RETURN(const XmlElement root, ParseRoot(body, "InitiateMultipartUploadResult"));
  std::string id = root.TextOf("UploadId");
  if (id.empty()) {
    return absl::InvalidArgumentError("the reply names no upload");
  }
  return id;
}

bool HoldsError(const std::string& body) {
  const auto root = ParseXml(body);
  return root.ok() && root->name == "Error";
}

}  // namespace dtrain::checkpoint::s3
