// The messages by which a rank uses the files of another host (file_server.h, peer_storage.h).
//
//   request and reply   head (bytes of text, bytes of data), text, data
//
// A connection carries one request and its reply at a time. Encoding and parsing are pure; what a
// peer sent is read within limits, and a malformed text is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/storage/storage.h"
#include "comm/net/data_socket.h"

namespace dtrain {

// The storages of a host.
enum class FilePlace : uint8_t {
  kDisk = 0,    // Its own part of checkpoints.
  kMemory = 1,  // Replicas of another host's part.
};

enum class FileOp : uint8_t {
  kOpen = 1,      // Number: the file's bytes.
  kRead = 2,      // Data: `bytes` bytes from `offset`.
  kChecksum = 3,  // Text: the file's checksums. `offset` 1: from the medium.
  kCreate = 4,    // A file of about `bytes` bytes, which this connection writes until kFinish.
  kAppend = 5,    // With data.
  kFinish = 6,
  kPublish = 7,  // With data: the content.
  kReplace = 8,  // With data too.
  kMakeDirectory = 9,
  kSyncDirectory = 10,
  kList = 11,  // Text: the entries.
  kRemoveFile = 12,
  kRemoveDirectory = 13,
  kFreeBytes = 14,    // Number: the bytes; the largest number where they are unknown.
  kMakeDurable = 15,  // What an existing file holds.
  kSend = 16,         // Copies a file to the tier behind. Text: the checksums of what was copied.
};

struct FileRequest {
  FileOp op = FileOp::kOpen;
  FilePlace place = FilePlace::kDisk;
  std::string path = {};
  uint64_t offset = 0;
  uint64_t bytes = 0;
  checkpoint::Access access = checkpoint::Access::kOwner;
};

struct FileReply {
  absl::Status status;
  uint64_t number = 0;
  std::string text = {};
};

// The most that one kRead or kAppend carries.
inline constexpr uint64_t kFilePartBytes = checkpoint::kBlockBytes;

std::string EncodeFileRequest(const FileRequest& request);
std::string EncodeFileReply(const FileReply& reply);
std::string EncodeEntries(const std::vector<checkpoint::Storage::Entry>& entries);
std::string EncodeChecksum(const checkpoint::FileChecksum& checksum);
absl::StatusOr<FileRequest> ParseFileRequest(absl::string_view text);
absl::StatusOr<FileReply> ParseFileReply(absl::string_view text);
absl::StatusOr<std::vector<checkpoint::Storage::Entry>> ParseEntries(absl::string_view text);
absl::StatusOr<checkpoint::FileChecksum> ParseChecksum(absl::string_view text);

struct FileHead {
  uint32_t text_bytes = 0;
  uint32_t data_bytes = 0;
};

absl::Status SendFileMessage(comm::DataSocket& socket, absl::string_view text,
                             absl::Span<const std::byte> data, Deadline deadline);
// InvalidArgument: the head announces more than any message has.
absl::StatusOr<FileHead> ReceiveFileHead(comm::DataSocket& socket, Deadline deadline);
// The text that follows its head. The data follow it.
absl::StatusOr<std::string> ReceiveFileText(comm::DataSocket& socket, const FileHead& head,
                                            Deadline deadline);

}  // namespace dtrain
