// A file on its way into an object: one PUT when it is small, else a multipart upload whose parts
// are sent by several threads.
//
// At most S3Options::parts_at_once parts are under way, and one more is being filled; Append waits
// when there are as many. A part's digests are computed by the thread that sends it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/s3/transfer_threads.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint::s3 {

// A multipart upload, shared by the file and the threads that send its parts. Thread-safe.
class MultipartUpload {
 public:
  // REQUIRES: `client` outlives it.
  MultipartUpload(S3Client& client, std::string key, int parts_at_once);

  absl::Status Begin();
  // Queues a part, the next in order; waits while as many as may be are under way. Returns the
  // first error of any part.
  static absl::Status Send(const std::shared_ptr<MultipartUpload>& upload, TransferThreads& threads,
                           std::vector<std::byte> part);
  // Waits for all parts and makes the object.
  absl::Status Complete();
  // Breaks the parts off that are under way. Does not block.
  void Cancel() { cancelled_ = true; }
  // Cancels, waits for the parts that are under way and removes all that were sent.
  absl::Status Abort();

 private:
  void SendPart(int number, const std::vector<std::byte>& part);
  void EndPart(int number, absl::StatusOr<UploadedPart> sent);
  absl::Status WaitUntilAtMost(int under_way);

  S3Client& client_;
  const std::string key_;
  const int parts_at_once_;
  const std::string nonce_;
  std::string id_;  // Constant after Begin.
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;
  uint64_t bytes_ = 0;
  absl::Status first_error_;
  std::vector<UploadedPart> parts_;
};

// Keeps uploads whose file was dropped before its end until they are aborted. Thread-safe.
class DroppedUploads {
 public:
  void Add(const std::string& key, std::shared_ptr<MultipartUpload> upload);
  // Aborts those of `key`; OK when there are none.
  absl::Status Abort(const std::string& key);

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<MultipartUpload>>> uploads_;
};

// Objects that the files of one storage share.
struct UploadContext {
  S3Client& client;
  TransferThreads& threads;
  DroppedUploads& dropped;
  uint64_t part_bytes = 0;
  int parts_at_once = 1;
};

// A new file that becomes the object `key` at Finish. A file that is dropped breaks its upload off;
// DroppedUploads has it then. REQUIRES: what `context` names outlives the file.
std::unique_ptr<WritableFile> MakeUploadFile(const UploadContext& context, const std::string& key,
                                             uint64_t bytes_expected);

}  // namespace dtrain::checkpoint::s3
