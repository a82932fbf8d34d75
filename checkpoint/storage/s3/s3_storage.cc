#include "checkpoint/storage/s3/s3_storage.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/digest.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/s3/s3_url.h"
#include "checkpoint/storage/s3/transfer_threads.h"
#include "checkpoint/storage/s3/upload.h"

namespace dtrain::checkpoint {
namespace s3 {
namespace {

class S3ReadableFile final : public ReadableFile {
 public:
  S3ReadableFile(S3Client& client, std::string key, uint64_t bytes)
      : client_(client), key_(std::move(key)), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    return client_.Read(key_, offset, into);
  }

 private:
  S3Client& client_;
  const std::string key_;
  const uint64_t bytes_;
};

class S3Storage final : public Storage {
 public:
  S3Storage(std::unique_ptr<HttpTransport> transport, S3Settings settings, std::string prefix,
            const S3Options& options, const Environment& environment, ProfileFound profile)
      : transport_(std::move(transport)),
        prefix_(std::move(prefix)),
        client_(std::move(settings), options, environment, std::move(profile), *transport_),
        threads_(options.parts_at_once),
        part_bytes_(options.part_bytes),
        parts_at_once_(options.parts_at_once) {}

  // Learns that the bucket is there and may be listed.
  absl::Status Check() { return client_.List(FolderKey(""), /*max=*/1).status(); }

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path,
                                                           uint64_t bytes_expected,
                                                           Access /*access*/) override {
    DT_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
    const absl::Status there = client_.Head(key).status();
    if (there.ok()) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot create ", DisplayName(path), ": there is an object of this name"));
    }
    if (!absl::IsNotFound(there)) {
      return there;
    }
    const UploadContext context{client_, threads_, dropped_, part_bytes_, parts_at_once_};
    return MakeUploadFile(context, key, bytes_expected);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
    DT_ASSIGN_OR_RETURN(const ObjectInfo info, client_.Head(key));
    return std::make_unique<S3ReadableFile>(client_, key, info.bytes);
  }

  absl::Status Publish(const std::string& path, absl::string_view content) override {
    DT_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
    DT_RETURN_IF_ERROR(client_.PutNew(key, BytesOf(content), RandomNonce()));
    return CheckConditions(key, content);
  }

  absl::Status Replace(const std::string& path, absl::string_view content) override {
    DT_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
    return client_.Put(key, BytesOf(content));
  }

  absl::Status MakeDirectory(const std::string& path) override { return KeyOf(path).status(); }
  absl::Status SyncDirectory(const std::string& path) override {
    return path.empty() ? absl::OkStatus() : KeyOf(path).status();
  }

  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override {
    DT_RETURN_IF_ERROR(SyncDirectory(path));
    const std::string folder = FolderKey(path);
    DT_ASSIGN_OR_RETURN(const ObjectPage page, client_.List(folder, /*max=*/0));
    std::vector<Entry> entries;
    const auto add = [&](absl::string_view name, bool is_directory, uint64_t bytes) {
      // Other names are not of ours; the folder's own key is one that other tools make.
      if (absl::ConsumePrefix(&name, folder) &&
          (IsPlainName(name) || absl::StartsWith(name, kTemporaryPrefix))) {
        entries.push_back({std::string(name), is_directory, bytes});
      }
    };
    for (const ListedObject& object : page.objects) {
      add(object.key, /*is_directory=*/false, object.bytes);
    }
    for (const std::string& prefix : page.prefixes) {
      add(absl::StripSuffix(prefix, "/"), /*is_directory=*/true, 0);
    }
    if (entries.empty() && !path.empty()) {
      return absl::NotFoundError(absl::StrCat("there is nothing below ", DisplayName(path)));
    }
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    return entries;
  }

  absl::Status RemoveFile(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
    absl::Status first = dropped_.Abort(key);
    first.Update(client_.Delete(key));
    return first;
  }
  absl::Status RemoveDirectory(const std::string& path) override { return KeyOf(path).status(); }

  absl::Status RemoveUnfinished(
      absl::FunctionRef<bool(const std::string& path)> is_stale) override {
    const std::string root = FolderKey("");
    const absl::StatusOr<std::vector<ListedUpload>> uploads = client_.ListUploads(root);
    if (absl::IsPermissionDenied(uploads.status())) {
      if (!has_told_of_uploads_.exchange(true)) {
        DT_LOG(Warning) << "unfinished uploads of ended saves stay: " << uploads.status().message();
      }
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(uploads.status());
    absl::Status first;
    for (const ListedUpload& upload : *uploads) {
      if (is_stale(upload.key.substr(root.size()))) {
        first.Update(client_.AbortUpload(upload.key, upload.upload_id));
      }
    }
    return first;
  }

  absl::StatusOr<std::string> Probe() override {
    const std::string key = absl::StrCat(FolderKey(""), kTemporaryPrefix, "probe-", RandomNonce());
    DT_RETURN_IF_ERROR(client_.Put(key, BytesOf("probe")));
    // Who may remove nothing can write all the same.
    const absl::Status removed = client_.Delete(key);
    DT_RETURN_IF_ERROR(absl::IsPermissionDenied(removed) ? absl::OkStatus() : removed);
    return std::string();
  }

  std::string DisplayName(const std::string& path) const override {
    return client_.UrlOf(absl::StrCat(prefix_, prefix_.empty() || path.empty() ? "" : "/", path));
  }

 private:
  absl::StatusOr<std::string> KeyOf(const std::string& path) const {
    DT_RETURN_IF_ERROR(CheckRelativePath(path));
    return absl::StrCat(FolderKey(""), path);
  }
  // The prefix of the keys in the folder `path`.
  std::string FolderKey(const std::string& path) const {
    return absl::StrCat(prefix_, prefix_.empty() ? "" : "/", path, path.empty() ? "" : "/");
  }

  // Once: a store that knows no conditions would let two writers commit. The same bytes are
  // written again under the condition that nothing is there, which must fail.
  absl::Status CheckConditions(const std::string& key, absl::string_view content) {
    if (conditions_hold_) {
      return absl::OkStatus();
    }
    const absl::Status again = client_.PutNew(key, BytesOf(content), RandomNonce());
    if (again.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          client_.settings().endpoint,
          " does not heed `If-None-Match: *`, so two writers could both commit; checkpoints need a "
          "store that does"));
    }
    conditions_hold_ = absl::IsAlreadyExists(again);
    return absl::OkStatus();
  }

  const std::unique_ptr<HttpTransport> transport_;
  const std::string prefix_;
  S3Client client_;
  DroppedUploads dropped_;
  TransferThreads threads_;
  const uint64_t part_bytes_;
  const int parts_at_once_;
  std::atomic<bool> conditions_hold_{false};
  std::atomic<bool> has_told_of_uploads_{false};
};

absl::Status CheckOptions(const S3Options& options) {
  constexpr uint64_t kPartBytesMin = 5 << 20;
  constexpr uint64_t kPartBytesMax = uint64_t{5} << 30;
  if (options.part_bytes < kPartBytesMin || options.part_bytes > kPartBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("parts of ", options.part_bytes,
                                                   " bytes; S3 allows ", kPartBytesMin, " to ",
                                                   kPartBytesMax));
  }
  if (options.parts_at_once < 1 || options.tries_max < 1) {
    return absl::InvalidArgumentError(absl::StrCat("parts_at_once ", options.parts_at_once,
                                                   " and tries_max ", options.tries_max,
                                                   " must be at least 1"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace s3

absl::StatusOr<std::unique_ptr<Storage>> OpenS3Storage(const std::string& url,
                                                       const S3Options& options) {
  DT_ASSIGN_OR_RETURN(const s3::S3Url parsed, s3::ParseS3Url(url));
  DT_RETURN_IF_ERROR(s3::CheckOptions(options));
  const Environment environment = options.environment ? *options.environment : ReadEnvironment();
  DT_ASSIGN_OR_RETURN(s3::ProfileFound profile, s3::FindProfile(environment));
  DT_ASSIGN_OR_RETURN(s3::S3Settings settings,
                      s3::ResolveSettings(parsed, options, environment, profile.values));
  DT_ASSIGN_OR_RETURN(auto transport, s3::MakeCurlTransport(settings.ca_bundle));
  auto storage =
      std::make_unique<s3::S3Storage>(std::move(transport), std::move(settings), parsed.prefix,
                                      options, environment, std::move(profile));
  DT_RETURN_IF_ERROR(storage->Check());
  return storage;
}

}  // namespace dtrain::checkpoint
