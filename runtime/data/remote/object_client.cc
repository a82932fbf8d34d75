// Clients of S3 and of web servers, over the checkpoints' HTTP transport, signatures and
// credentials.
#include "runtime/data/remote/object_client.h"

#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/storage/s3/s3_url.h"
#include "runtime/data/remote/range_reply.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain::remote {
namespace {

namespace s3 = checkpoint::s3;

constexpr char kPatternBytes[] = "*?[";

// Behind the error of a read that was given up: what there is to do.
absl::Status GivenUp(const absl::Status& status, absl::Duration timeout) {
  if (!absl::IsUnavailable(status)) {
    return status;
  }
  return absl::UnavailableError(absl::StrCat(
      status.message(), "; data.remote_timeout_s, now ", absl::FormatDuration(timeout),
      ", is how long a read tries; look after the server and the network, then start again"));
}

checkpoint::S3Options S3OptionsOf(const ClientOptions& options) {
  checkpoint::S3Options s3_options;
  s3_options.tries_max = std::numeric_limits<int>::max();  // The time is the limit.
  s3_options.backoff_first = options.backoff_first;
  s3_options.backoff_max = options.backoff_max;
  s3_options.request_timeout = options.timeout;
  s3_options.environment = options.environment;
  s3_options.clock = options.clock;
  return s3_options;
}

// Objects of S3, by a client for each bucket.
class S3Objects final : public ObjectClient {
 public:
  S3Objects(const ClientOptions& options, s3::HttpTransport& transport)
      : options_(options), transport_(transport) {}

  absl::StatusOr<ObjectPiece> Read(const std::string& address, int64_t offset,
                                   absl::Span<std::byte> into,
                                   const std::atomic<bool>* cancelled) override {
    DT_ASSIGN_OR_RETURN(const s3::S3Url url, s3::ParseS3Url(address));
    DT_ASSIGN_OR_RETURN(s3::S3Client* const client, ClientOf(url));
    const auto reply = client->ReadUpTo(url.prefix, static_cast<uint64_t>(offset), into, cancelled);
    if (!reply.ok()) {
      return GivenUp(reply.status(), options_.timeout);
    }
    return PieceOfReply(*reply, address, offset, static_cast<int64_t>(into.size()));
  }

  absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) override {
    const size_t magic = pattern.find_first_of(kPatternBytes);
    if (magic == std::string::npos) {
      return std::vector<std::string>{pattern};
    }
    if (pattern.find('/', magic) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", pattern,
                       "\": a pattern may stand behind the last '/' of an address, not before; "
                       "name the folders one by one"));
    }
    DT_ASSIGN_OR_RETURN(const s3::S3Url url, s3::ParseS3Url(pattern));
    DT_ASSIGN_OR_RETURN(s3::S3Client* const client, ClientOf(url));
    const size_t key_magic = url.prefix.find_first_of(kPatternBytes);
    const auto page = client->List(url.prefix.substr(0, key_magic), /*max=*/0);
    if (!page.ok()) {
      return GivenUp(page.status(), options_.timeout);
    }
    std::vector<std::string> found;
    for (const s3::ListedObject& object : page->objects) {
      if (object.key == url.prefix) {  // The whole name of an object is taken as it is.
        return std::vector<std::string>{pattern};
      }
      if (fnmatch(url.prefix.c_str(), object.key.c_str(), FNM_PATHNAME) == 0) {
        found.push_back(client->UrlOf(object.key));
      }
    }
    if (found.empty()) {
      return absl::NotFoundError(absl::StrCat("no token file matches \"", pattern, "\""));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  absl::StatusOr<s3::S3Client*> ClientOf(const s3::S3Url& url) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<s3::S3Client>& client = clients_[url.bucket];
    if (client == nullptr) {
      const checkpoint::S3Options s3_options = S3OptionsOf(options_);
      DT_ASSIGN_OR_RETURN(s3::ProfileFound profile, s3::FindProfile(options_.environment));
      DT_ASSIGN_OR_RETURN(
          s3::S3Settings settings,
          s3::ResolveSettings(url, s3_options, options_.environment, profile.values));
      client = std::make_unique<s3::S3Client>(std::move(settings), s3_options, options_.environment,
                                              std::move(profile), transport_);
    }
    return client.get();
  }

  const ClientOptions options_;
  s3::HttpTransport& transport_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<s3::S3Client>> clients_;
};

// Files of web servers.
class WebFiles final : public ObjectClient {
 public:
  WebFiles(const ClientOptions& options, s3::HttpTransport& transport)
      : options_(options), backoff_(S3OptionsOf(options)), transport_(transport) {}

  absl::StatusOr<ObjectPiece> Read(const std::string& address, int64_t offset,
                                   absl::Span<std::byte> into,
                                   const std::atomic<bool>* cancelled) override {
    Clock& clock = *options_.clock;
    const Deadline deadline = Deadline::After(options_.timeout, clock);
    for (int tries = 1;; ++tries) {
      absl::StatusOr<ObjectPiece> piece = TryOnce(address, offset, into, deadline, cancelled);
      if (piece.ok() || !absl::IsUnavailable(piece.status())) {
        return piece;
      }
      const absl::Duration wait = NextFraction() * s3::BackoffLimit(backoff_, tries);
      if (wait >= deadline.Remaining()) {
        return GivenUp(Annotate(piece.status(), absl::StrFormat("gave up after %d tries", tries)),
                       options_.timeout);
      }
      if (tries == 3) {  // One or two failures are usual, so they are not reported.
        DT_LOG(Warning) << piece.status().message() << "; trying again";
      }
      clock.Sleep(wait);
      if (cancelled != nullptr && cancelled->load()) {
        return absl::CancelledError(absl::StrCat(address, ": the request was cancelled"));
      }
    }
  }

  absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) override {
    if (absl::StrContains(pattern, "*")) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", pattern,
                       "\": web servers list no files, so a pattern cannot be expanded; name each "
                       "file"));
    }
    return std::vector<std::string>{pattern};
  }

 private:
  absl::StatusOr<ObjectPiece> TryOnce(const std::string& address, int64_t offset,
                                      absl::Span<std::byte> into, Deadline deadline,
                                      const std::atomic<bool>* cancelled) {
    constexpr int kRedirectionsMax = 5;
    const auto size = static_cast<int64_t>(into.size());
    s3::HttpRequest request;
    request.url = address;
    request.headers = {{"range", absl::StrFormat("bytes=%d-%d", offset, offset + size - 1)}};
    request.into = into;
    request.deadline = deadline;
    request.cancelled = cancelled;
    for (int i = 0; i <= kRedirectionsMax; ++i) {
      const absl::StatusOr<s3::HttpReply> reply = transport_.Perform(request);
      if (absl::IsResourceExhausted(reply.status())) {
        return WithoutRanges(address);  // More came than was asked for.
      }
      if (!reply.ok()) {
        return Annotate(reply.status(), absl::StrCat("cannot read ", address));
      }
      if (reply->ok()) {
        return PieceOfReply(*reply, address, offset, size);
      }
      if (reply->code < 300 || reply->code >= 400) {
        return JudgeWebReply(*reply, address);
      }
      absl::StatusOr<std::string> next = RedirectionOf(*reply, request.url);
      if (!next.ok()) {
        return Annotate(next.status(), absl::StrCat("cannot read ", address));
      }
      request.url = *std::move(next);
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "cannot read %s: the server sends on more than %d times", address, kRedirectionsMax));
  }

  double NextFraction() {
    const std::lock_guard lock(mutex_);
    return random_.Uniform();
  }

  const ClientOptions options_;
  const checkpoint::S3Options backoff_;
  s3::HttpTransport& transport_;
  std::mutex mutex_;
  SplitMix64 random_{MixBits(static_cast<uint64_t>(Clock::Real().MonotonicNanos())) +
                     MixBits(static_cast<uint64_t>(getpid()))};
};

// Chooses between the two by the scheme.
class AllObjects final : public ObjectClient {
 public:
  AllObjects(const ClientOptions& options, std::unique_ptr<s3::HttpTransport> transport)
      : transport_(std::move(transport)), s3_(options, *transport_), web_(options, *transport_) {}

  absl::StatusOr<ObjectPiece> Read(const std::string& address, int64_t offset,
                                   absl::Span<std::byte> into,
                                   const std::atomic<bool>* cancelled) override {
    if (cancelled != nullptr && cancelled->load()) {
      return absl::CancelledError(absl::StrCat(address, ": the request was cancelled"));
    }
    return ClientOf(address).Read(address, offset, into, cancelled);
  }
  absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) override {
    DT_RETURN_IF_ERROR(plan::CheckRemoteAddress(pattern));
    return ClientOf(pattern).Expand(pattern);
  }

 private:
  ObjectClient& ClientOf(const std::string& address) {
    if (checkpoint::IsS3Url(address)) {
      return s3_;
    }
    return web_;
  }

  const std::unique_ptr<s3::HttpTransport> transport_;
  S3Objects s3_;
  WebFiles web_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectClient>> MakeObjectClient(const ClientOptions& options) {
  DT_ASSIGN_OR_RETURN(auto transport,
                      s3::MakeCurlTransport(s3::Lookup(options.environment, "AWS_CA_BUNDLE")));
  return std::make_unique<AllObjects>(options, std::move(transport));
}

}  // namespace dtrain::remote
