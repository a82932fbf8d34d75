#include "checkpoint/storage/s3/upload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/commit/nonce.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr int kPartsMax = 10'000;  // S3's limit.

class UploadFile final : public WritableFile {
 public:
  UploadFile(const UploadContext& context, std::string key, uint64_t part_bytes)
      : context_(context), key_(std::move(key)), part_bytes_(part_bytes) {}
  UploadFile(const UploadFile&) = delete;
  UploadFile& operator=(const UploadFile&) = delete;
  ~UploadFile() override {
    if (upload_ != nullptr) {
      upload_->Cancel();
      context_.dropped.Add(key_, std::move(upload_));
    }
  }

  absl::Status Append(absl::Span<const std::byte> data) override {
    while (!data.empty()) {
      if (buffer_.size() == part_bytes_) {  // Only when more follows: the last part may be whole.
        DT_RETURN_IF_ERROR(SendBuffer());
      }
      const size_t n = std::min<size_t>(data.size(), part_bytes_ - buffer_.size());
      buffer_.insert(buffer_.end(), data.begin(), data.begin() + static_cast<ptrdiff_t>(n));
      data.remove_prefix(n);
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    if (upload_ == nullptr) {
      return context_.client.Put(key_, buffer_);
    }
    absl::Status status = SendBuffer();
    if (status.ok()) {
      status = upload_->Complete();
    }
    if (status.ok()) {
      upload_.reset();
    }
    return status;
  }

 private:
  absl::Status SendBuffer() {
    if (upload_ == nullptr) {
      auto upload =
          std::make_shared<MultipartUpload>(context_.client, key_, context_.parts_at_once);
      DT_RETURN_IF_ERROR(upload->Begin());
      upload_ = std::move(upload);
    }
    std::vector<std::byte> next;
    next.reserve(buffer_.size());
    buffer_.swap(next);
    return MultipartUpload::Send(upload_, context_.threads, std::move(next));
  }

  const UploadContext context_;
  const std::string key_;
  const uint64_t part_bytes_;
  std::vector<std::byte> buffer_;
  std::shared_ptr<MultipartUpload> upload_;  // Null: all that was appended is in buffer_.
};

}  // namespace

MultipartUpload::MultipartUpload(S3Client& client, std::string key, int parts_at_once)
    : client_(client), key_(std::move(key)), parts_at_once_(parts_at_once), nonce_(RandomNonce()) {}

absl::Status MultipartUpload::Begin() {
  DT_ASSIGN_OR_RETURN(id_, client_.CreateUpload(key_, nonce_));
  return absl::OkStatus();
}

absl::Status MultipartUpload::Send(const std::shared_ptr<MultipartUpload>& upload,
                                   TransferThreads& threads, std::vector<std::byte> part) {
  DT_RETURN_IF_ERROR(upload->WaitUntilAtMost(upload->parts_at_once_ - 1));
  int number = 0;
  {
    const std::lock_guard lock(upload->mutex_);
    if (upload->parts_.size() == kPartsMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(upload->client_.UrlOf(upload->key_),
                       " is longer than was expected: it has more than ", kPartsMax, " parts"));
    }
    ++upload->under_way_;
    upload->bytes_ += part.size();
    upload->parts_.emplace_back();
    number = static_cast<int>(upload->parts_.size());
  }
  threads.Submit(
      [upload, number, data = std::make_shared<std::vector<std::byte>>(std::move(part))] {
        upload->SendPart(number, *data);
      });
  return absl::OkStatus();
}

void MultipartUpload::SendPart(int number, const std::vector<std::byte>& part) {
  // Also after an exception, which the worker catches: nobody may wait for this part for ever.
  struct NoteEnd {
    MultipartUpload& upload;
    const int number;
    absl::StatusOr<UploadedPart> sent = absl::ResourceExhaustedError("a part was not sent");
    ~NoteEnd() { upload.EndPart(number, std::move(sent)); }
  } part_end{.upload = *this, .number = number};
  part_end.sent = cancelled_ ? absl::CancelledError("the upload was broken off")
                             : client_.UploadPart(key_, id_, number, part, cancelled_);
}

void MultipartUpload::EndPart(int number, absl::StatusOr<UploadedPart> sent) {
  const std::lock_guard lock(mutex_);
  --under_way_;
  if (sent.ok()) {
    parts_[static_cast<size_t>(number) - 1] = *std::move(sent);
  } else {
    first_error_.Update(sent.status());
    cancelled_ = true;  // The others are of no use any more.
  }
  changed_.notify_all();
}

// A part ends within S3Options::request_timeout, and so does the wait.
absl::Status MultipartUpload::WaitUntilAtMost(int under_way) {
  std::unique_lock lock(mutex_);
  while (under_way_ > under_way) {
    changed_.wait(lock);
    WorkCount::Note();  // A part has ended, by another thread.
  }
  return first_error_;
}

absl::Status MultipartUpload::Complete() {
  DT_RETURN_IF_ERROR(WaitUntilAtMost(0));
  return client_.CompleteUpload(key_, id_, parts_, bytes_, nonce_);
}

absl::Status MultipartUpload::Abort() {
  Cancel();
  WaitUntilAtMost(0).IgnoreError();
  return client_.AbortUpload(key_, id_);
}

void DroppedUploads::Add(const std::string& key, std::shared_ptr<MultipartUpload> upload) {
  const std::lock_guard lock(mutex_);
  uploads_.emplace_back(key, std::move(upload));
}

absl::Status DroppedUploads::Abort(const std::string& key) {
  std::vector<std::shared_ptr<MultipartUpload>> found;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = uploads_.begin(); at != uploads_.end();) {
      if (at->first == key) {
        found.push_back(std::move(at->second));
        at = uploads_.erase(at);
      } else {
        ++at;
      }
    }
  }
  absl::Status first;
  for (const std::shared_ptr<MultipartUpload>& upload : found) {
    first.Update(upload->Abort());
  }
  return first;
}

std::unique_ptr<WritableFile> MakeUploadFile(const UploadContext& context, const std::string& key,
                                             uint64_t bytes_expected) {
  const uint64_t part_bytes =
      std::max(context.part_bytes, (bytes_expected + kPartsMax - 1) / kPartsMax);
  return std::make_unique<UploadFile>(context, key, part_bytes);
}

}  // namespace dtrain::checkpoint::s3
