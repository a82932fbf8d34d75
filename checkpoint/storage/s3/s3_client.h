// The requests to one bucket: signed, tried again where that may help, errors in one line.
//
// Thread-safe; each call blocks until its reply is there, at most S3Options::request_timeout.
// Requests that may be repeated without harm are tried again after replies 429 and 5xx and after
// broken connections, each after a random wait up to a doubling limit (full jitter).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/storage/s3/credentials.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/replies.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/storage/s3/signature.h"

namespace dtrain::checkpoint::s3 {

// The longest wait before try number `tries_done + 1`; the wait is a random part of it.
absl::Duration BackoffLimit(const S3Options& options, int tries_done);

struct ObjectInfo {
  uint64_t bytes = 0;
  std::string nonce;  // The writer's; "" when the object has none.
};

struct UploadedPart {
  int number = 0;  // From 1.
  std::string etag;
  std::string crc32c;
};

class S3Client {
 public:
  // REQUIRES: `transport` and options.clock outlive the client.
  S3Client(S3Settings settings, S3Options options, Environment environment, ProfileFound profile,
           HttpTransport& transport);

  const S3Settings& settings() const { return settings_; }
  std::string UrlOf(const std::string& key) const;

  // NotFound: no object has this key.
  absl::StatusOr<ObjectInfo> Head(const std::string& key);
  // Fills `into`; OutOfRange when the object ends before.
  absl::Status Read(const std::string& key, uint64_t offset, absl::Span<std::byte> into);
  // Reads what the object has from `offset` on into `into`, as the reply says: as much as there is.
  // OutOfRange when it ends before. The request ends soon after `cancelled` becomes true.
  absl::StatusOr<HttpReply> ReadUpTo(const std::string& key, uint64_t offset,
                                     absl::Span<std::byte> into,
                                     const std::atomic<bool>* cancelled = nullptr);
  // Writes the object, whatever was there.
  absl::Status Put(const std::string& key, absl::Span<const std::byte> body);
  // Writes the object if there is none of this key: AlreadyExists otherwise. A lost reply is
  // resolved by `nonce`, which must be new: the object that is there is this call's if it has it.
  absl::Status PutNew(const std::string& key, absl::Span<const std::byte> body,
                      const std::string& nonce);
  absl::Status Delete(const std::string& key);

  // The objects and common prefixes below `prefix` ("runs/a/"), up to the next '/'. At most `max`
  // of them, or all when it is 0.
  absl::StatusOr<ObjectPage> List(const std::string& prefix, int max);

  // The unfinished uploads of keys below `prefix`.
  absl::StatusOr<std::vector<ListedUpload>> ListUploads(const std::string& prefix);
  absl::StatusOr<std::string> CreateUpload(const std::string& key, const std::string& nonce);
  // The connection is broken soon after `cancelled` becomes true.
  absl::StatusOr<UploadedPart> UploadPart(const std::string& key, const std::string& upload_id,
                                          int number, absl::Span<const std::byte> body,
                                          const std::atomic<bool>& cancelled);
  // Makes an object of the parts and checks its size. A lost reply is resolved by the nonce that
  // the upload was made with.
  absl::Status CompleteUpload(const std::string& key, const std::string& upload_id,
                              const std::vector<UploadedPart>& parts, uint64_t bytes,
                              const std::string& nonce);
  absl::Status AbortUpload(const std::string& key, const std::string& upload_id);

 private:
  struct Call {
    Call(const char* action_of, const char* permission_of, const char* method_of,
         const std::string& key_of)
        : action(action_of), permission(permission_of), method(method_of), key(key_of) {}
    std::string action;      // For messages: "read".
    std::string permission;  // "s3:GetObject".
    std::string method;
    std::string key;
    std::string prefix;  // For messages, where there is no key.
    NamedValues query;
    NamedValues headers;
    absl::Span<const std::byte> body;
    absl::Span<std::byte> into;
    size_t reply_bytes_max = 1 << 20;
    const std::atomic<bool>* cancelled = nullptr;
  };
  // How a call ended, besides its reply.
  struct Trace {
    std::string error_code;  // S3's code of the last error.
    bool may_have_acted =
        false;  // An earlier try got no reply or 5xx, but may have had its effect.
  };

  absl::StatusOr<HttpReply> Run(const Call& call, Trace* trace = nullptr);
  absl::StatusOr<HttpReply> TryOnce(const Call& call, const RequestPlace& place,
                                    const Credentials& credentials, Deadline deadline);
  HttpRequest Sign(const Call& call, const Credentials& credentials, absl::Time now) const;
  // HEAD replies have no body that says why they failed: a GET asks for it.
  absl::Status ExplainHead(const std::string& key, const absl::Status& status);

  const S3Settings settings_;
  const S3Options options_;
  HttpTransport& transport_;
  CredentialProvider credentials_;
};

}  // namespace dtrain::checkpoint::s3
