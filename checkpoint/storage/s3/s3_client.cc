#include "checkpoint/storage/s3/s3_client.h"

#include <unistd.h>

#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/storage/s3/digest.h"
#include "checkpoint/storage/s3/xml.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr char kNonceHeader[] = "x-amz-meta-dtrain-nonce";

// A number below 1 that differs between threads, processes and machines.
double RandomFraction() {
  static std::atomic<uint64_t> threads{0};
  thread_local SplitMix64 random(MixBits(static_cast<uint64_t>(absl::GetCurrentTimeNanos())) +
                                 MixBits(static_cast<uint64_t>(getpid())) + threads.fetch_add(1));
  return random.Uniform();
}

// Text for people never holds a key, even if a server repeats one.
absl::Status WithoutKeys(const absl::Status& status, const SigningKeys& keys) {
  constexpr size_t kSecretBytesMin = 8;  // Shorter ones, of test servers, may be parts of words.
  std::string message(status.message());
  for (const std::string* const secret :
       {&keys.secret_access_key, &keys.session_token, &keys.access_key_id}) {
    if (secret->size() >= kSecretBytesMin) {
      message = absl::StrReplaceAll(message, {{*secret, "***"}});
    }
  }
  return absl::Status(status.code(), message);
}

}  // namespace

absl::Duration BackoffLimit(const S3Options& options, int tries_done) {
  return Backoff{.first = options.backoff_first, .longest = options.backoff_max}.After(tries_done);
}

S3Client::S3Client(S3Settings settings, S3Options options, Environment environment,
                   ProfileFound profile, HttpTransport& transport)
    : settings_(std::move(settings)),
      options_(std::move(options)),
      transport_(transport),
      credentials_(std::move(environment), std::move(profile), settings_.region, transport,
                   *options_.clock) {}

std::string S3Client::UrlOf(const std::string& key) const {
  return absl::StrCat("s3://", settings_.bucket, key.empty() ? "" : "/", key);
}

HttpRequest S3Client::Sign(const Call& call, const Credentials& credentials, absl::Time now) const {
  const size_t scheme_end = settings_.endpoint.find("://") + 3;
  std::string host = settings_.endpoint.substr(scheme_end);
  RequestToSign to_sign;
  to_sign.method = call.method;
  if (settings_.path_style) {
    to_sign.path = absl::StrCat("/", settings_.bucket, call.key.empty() ? "" : "/", call.key);
  } else {
    host = absl::StrCat(settings_.bucket, ".", host);
    to_sign.path = absl::StrCat("/", call.key);
  }
  to_sign.query = call.query;
  to_sign.payload_sha256 = Sha256Hex(call.body);
  SigningScope scope;
  scope.time = AmzTime(now);
  scope.region = settings_.region;
  to_sign.headers = call.headers;
  to_sign.headers.emplace_back("x-amz-content-sha256", to_sign.payload_sha256);
  to_sign.headers.emplace_back("x-amz-date", scope.time);
  if (!credentials.keys.session_token.empty()) {
    to_sign.headers.emplace_back("x-amz-security-token", credentials.keys.session_token);
  }
  if (call.method == "PUT" || call.method == "POST") {
    to_sign.headers.emplace_back("content-type", "application/octet-stream");
  }
  HttpRequest request;
  request.headers = to_sign.headers;  // libcurl makes the same Host header of the URL.
  to_sign.headers.emplace_back("host", host);
  request.headers.emplace_back("Authorization", Authorization(to_sign, scope, credentials.keys));
  request.method = call.method;
  request.url = absl::StrCat(settings_.endpoint.substr(0, scheme_end), host,
                             PercentEncode(to_sign.path, /*keep_slash=*/true));
  if (!call.query.empty()) {
    absl::StrAppend(&request.url, "?", EncodeQuery(call.query));
  }
  request.body = call.body;
  request.into = call.into;
  request.reply_bytes_max = call.reply_bytes_max;
  request.connect_timeout = options_.connect_timeout;
  request.cancelled = call.cancelled;
  return request;
}

absl::StatusOr<HttpReply> S3Client::TryOnce(const Call& call, const RequestPlace& place,
                                            const Credentials& credentials, Deadline deadline) {
  HttpRequest request = Sign(call, credentials, place.sent_at);
  request.deadline = deadline;
  absl::StatusOr<HttpReply> reply = transport_.Perform(request);
  return reply.ok() ? std::move(reply) : Annotate(reply.status(), FailedRequest(place, settings_));
}

absl::StatusOr<HttpReply> S3Client::Run(const Call& call, Trace* trace) {
  Clock& clock = *options_.clock;
  const Deadline deadline = Deadline::After(options_.request_timeout, clock);
  bool renewed = false;
  for (int tries = 1;; ++tries) {
    RequestPlace place{call.action, call.permission, UrlOf(absl::StrCat(call.key, call.prefix)), "",
                       clock.WallTime()};
    DT_ASSIGN_OR_RETURN(const Credentials credentials, credentials_.Get());
    place.credentials_origin = credentials.origin;
    absl::StatusOr<HttpReply> reply = TryOnce(call, place, credentials, deadline);
    WorkCount::Note();  // Also a try that failed: their number and time have limits of their own.
    absl::Status status = reply.status();
    bool again = absl::IsUnavailable(status);
    if (reply.ok()) {
      const bool failed = !reply->ok() || (call.method == "POST" && HoldsError(reply->body));
      if (!failed) {
        return reply;
      }
      ReplyError error = JudgeReply(*reply, place, settings_);
      status = WithoutKeys(error.status, credentials.keys);
      again = error.next == ReplyError::Next::kTryAgain;
      if (error.next == ReplyError::Next::kRenewCredentials && !renewed && credentials_.Forget()) {
        renewed = true;
        continue;
      }
      if (trace != nullptr) {
        trace->error_code = error.code;
      }
    }
    if (!again) {
      return status;
    }
    if (trace != nullptr) {
      trace->may_have_acted = true;
    }
    const absl::Duration wait = RandomFraction() * BackoffLimit(options_, tries);
    if (tries >= options_.tries_max || wait >= deadline.Remaining()) {
      return Annotate(status, absl::StrCat("gave up after ", tries, " tries"));
    }
    if (tries == 3) {  // One or two failures are usual, so they are not reported.
      DT_LOG(Warning) << status.message() << "; trying again";
    }
    clock.Sleep(wait);
    if (call.cancelled != nullptr && call.cancelled->load()) {
      return absl::CancelledError(absl::StrCat(UrlOf(call.key), ": the request was cancelled"));
    }
  }
}

absl::Status S3Client::ExplainHead(const std::string& key, const absl::Status& status) {
  Call call("read", "s3:GetObject and s3:ListBucket", "GET", key);
  call.headers = {{"range", "bytes=0-0"}};
  const absl::Status explained = Run(call).status();
  return explained.ok() ? status : explained;
}

absl::StatusOr<ObjectInfo> S3Client::Head(const std::string& key) {
  const Call call("read", "s3:GetObject and s3:ListBucket", "HEAD", key);
  const absl::StatusOr<HttpReply> reply = Run(call);
  if (absl::IsNotFound(reply.status())) {
    return reply.status();
  }
  if (!reply.ok()) {
    return absl::IsUnavailable(reply.status()) ? reply.status() : ExplainHead(key, reply.status());
  }
  ObjectInfo info;
  if (!absl::SimpleAtoi(reply->HeaderOf("content-length"), &info.bytes)) {
    return absl::InternalError(absl::StrCat(UrlOf(key), ": the reply to HEAD has no size"));
  }
  info.nonce = reply->HeaderOf(kNonceHeader);
  return info;
}

absl::Status S3Client::Read(const std::string& key, uint64_t offset, absl::Span<std::byte> into) {
  if (into.empty()) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const HttpReply reply, ReadUpTo(key, offset, into));
  // A server that does not know ranges replies 200 with the whole object.
  if (reply.code != 206 && offset > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(UrlOf(key), ": ", settings_.endpoint, " does not read ranges of objects"));
  }
  if (reply.into_bytes < into.size()) {
    return absl::OutOfRangeError(absl::StrCat(UrlOf(key), " ends at byte ",
                                              offset + reply.into_bytes, "; ", into.size(),
                                              " bytes from ", offset, " were wanted"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpReply> S3Client::ReadUpTo(const std::string& key, uint64_t offset,
                                             absl::Span<std::byte> into,
                                             const std::atomic<bool>* cancelled) {
  Call call("read", "s3:GetObject", "GET", key);
  call.headers = {{"range", absl::StrCat("bytes=", offset, "-", offset + into.size() - 1)}};
  call.into = into;
  call.cancelled = cancelled;
  return Run(call);
}

absl::Status S3Client::Put(const std::string& key, absl::Span<const std::byte> body) {
  Call call("write", "s3:PutObject", "PUT", key);
  call.headers = {{"x-amz-checksum-crc32c", Crc32cBase64(body)}};
  call.body = body;
  return Run(call).status();
}

absl::Status S3Client::PutNew(const std::string& key, absl::Span<const std::byte> body,
                              const std::string& nonce) {
  Call call("write", "s3:PutObject", "PUT", key);
  call.headers = {
      {"if-none-match", "*"}, {"x-amz-checksum-crc32c", Crc32cBase64(body)}, {kNonceHeader, nonce}};
  call.body = body;
  Trace trace;
  const absl::Status status = Run(call, &trace).status();
  if (status.ok() || !trace.may_have_acted) {
    return status;
  }
  const absl::StatusOr<ObjectInfo> there = Head(key);
  if (there.ok()) {
    return there->nonce == nonce
               ? absl::OkStatus()
               : absl::AlreadyExistsError(absl::StrCat(UrlOf(key), " was written by another"));
  }
  return status;
}

absl::Status S3Client::Delete(const std::string& key) {
  const Call call("remove", "s3:DeleteObject", "DELETE", key);
  return Run(call).status();
}

absl::StatusOr<ObjectPage> S3Client::List(const std::string& prefix, int max) {
  ObjectPage all;
  Call call("list", "s3:ListBucket", "GET", "");
  call.prefix = prefix;
  call.reply_bytes_max = kXmlBytesMax;
  do {
    call.query = {
        {"list-type", "2"}, {"delimiter", "/"}, {"encoding-type", "url"}, {"prefix", prefix}};
    if (max > 0) {
      call.query.emplace_back("max-keys", absl::StrCat(max));
    }
    if (!all.continuation_token.empty()) {
      call.query.emplace_back("continuation-token", all.continuation_token);
    }
    DT_ASSIGN_OR_RETURN(const HttpReply reply, Run(call));
    absl::StatusOr<ObjectPage> page = ParseObjectPage(reply.body);
    if (!page.ok()) {
      return Annotate(page.status(), absl::StrCat("list of ", UrlOf(prefix)));
    }
    std::move(page->objects.begin(), page->objects.end(), std::back_inserter(all.objects));
    std::move(page->prefixes.begin(), page->prefixes.end(), std::back_inserter(all.prefixes));
    if (page->continuation_token == all.continuation_token && !all.continuation_token.empty()) {
      return absl::InternalError(absl::StrCat("list of ", UrlOf(prefix), " goes round in circles"));
    }
    all.continuation_token = std::move(page->continuation_token);
  } while (max == 0 && !all.continuation_token.empty());
  return all;
}

absl::StatusOr<std::vector<ListedUpload>> S3Client::ListUploads(const std::string& prefix) {
  constexpr int kPagesMax = 100;
  std::vector<ListedUpload> all;
  UploadPage page;
  for (int i = 0; i < kPagesMax; ++i) {
    Call call("list the uploads of", "s3:ListBucketMultipartUploads", "GET", "");
    call.prefix = prefix;
    call.reply_bytes_max = kXmlBytesMax;
    call.query = {{"uploads", ""}, {"prefix", prefix}};
    if (!page.key_marker.empty()) {
      call.query.emplace_back("key-marker", page.key_marker);
      call.query.emplace_back("upload-id-marker", page.upload_id_marker);
    }
    DT_ASSIGN_OR_RETURN(const HttpReply reply, Run(call));
    absl::StatusOr<UploadPage> parsed = ParseUploadPage(reply.body);
    if (!parsed.ok()) {
      return Annotate(parsed.status(), absl::StrCat("list of the uploads of ", UrlOf(prefix)));
    }
    page = *std::move(parsed);
    for (ListedUpload& upload : page.uploads) {
      if (absl::StartsWith(upload.key, prefix)) {  // Not every server heeds the prefix.
        all.push_back(std::move(upload));
      }
    }
    if (page.key_marker.empty()) {
      break;
    }
  }
  return all;
}

absl::StatusOr<std::string> S3Client::CreateUpload(const std::string& key,
                                                   const std::string& nonce) {
  Call call("write", "s3:PutObject", "POST", key);
  call.query = {{"uploads", ""}};
  call.headers = {{"x-amz-checksum-algorithm", "CRC32C"}, {kNonceHeader, nonce}};
  DT_ASSIGN_OR_RETURN(const HttpReply reply, Run(call));
  absl::StatusOr<std::string> id = ParseUploadId(reply.body);
  return id.ok() ? std::move(id) : Annotate(id.status(), absl::StrCat("upload of ", UrlOf(key)));
}

absl::StatusOr<UploadedPart> S3Client::UploadPart(const std::string& key,
                                                  const std::string& upload_id, int number,
                                                  absl::Span<const std::byte> body,
                                                  const std::atomic<bool>& cancelled) {
  UploadedPart part;
  part.number = number;
  part.crc32c = Crc32cBase64(body);
  Call call("write", "s3:PutObject", "PUT", key);
  call.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload_id}};
  call.headers = {{"x-amz-checksum-crc32c", part.crc32c}};
  call.body = body;
  call.cancelled = &cancelled;
  DT_ASSIGN_OR_RETURN(const HttpReply reply, Run(call));
  part.etag = reply.HeaderOf("etag");
  return part;
}

absl::Status S3Client::CompleteUpload(const std::string& key, const std::string& upload_id,
                                      const std::vector<UploadedPart>& parts, uint64_t bytes,
                                      const std::string& nonce) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const UploadedPart& part : parts) {
    const std::string etag = absl::StrReplaceAll(
        part.etag, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
    absl::StrAppend(&body, "<Part><PartNumber>", part.number, "</PartNumber><ETag>", etag,
                    "</ETag><ChecksumCRC32C>", part.crc32c, "</ChecksumCRC32C></Part>");
  }
  absl::StrAppend(&body, "</CompleteMultipartUpload>");
  Call call("write", "s3:PutObject", "POST", key);
  call.query = {{"uploadId", upload_id}};
  call.body = BytesOf(body);
  Trace trace;
  const absl::Status status = Run(call, &trace).status();
  const bool unclear =
      trace.may_have_acted && (absl::IsUnavailable(status) || trace.error_code == "NoSuchUpload");
  if (!status.ok() && !unclear) {
    return status;
  }
  const absl::StatusOr<ObjectInfo> there = Head(key);
  if (!there.ok() || (unclear && there->nonce != nonce)) {
    return status.ok() ? there.status() : status;
  }
  if (there->bytes != bytes) {
    return absl::DataLossError(
        absl::StrCat(UrlOf(key), " has ", there->bytes, " bytes after an upload of ", bytes));
  }
  return absl::OkStatus();
}

absl::Status S3Client::AbortUpload(const std::string& key, const std::string& upload_id) {
  Call call("abort the upload of", "s3:AbortMultipartUpload", "DELETE", key);
  call.query = {{"uploadId", upload_id}};
  Trace trace;
  const absl::Status status = Run(call, &trace).status();
  const bool gone = absl::IsNotFound(status) || trace.error_code == "NoSuchUpload";
  return gone ? absl::OkStatus() : status;
}

}  // namespace dtrain::checkpoint::s3
