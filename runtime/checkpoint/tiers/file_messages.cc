#include "runtime/checkpoint/tiers/file_messages.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_error.h"
#include "base/status.h"
#include "checkpoint/format/manifest.h"
#include "comm/net/wire.h"

namespace dtrain {
namespace {

constexpr uint32_t kFileTextBytesMax = 64U << 20;
constexpr size_t kFilePathBytesMax = 4096;
constexpr size_t kFileErrorBytesMax = 64U << 10;
constexpr size_t kHashDigitsMax = 64;
static_assert(checkpoint::kManifestBytesMax <= UINT32_MAX, "a manifest is the data of one message");

absl::Status MalformedFileMessage(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("a rank sent a malformed ", what,
                   " about the files of a host: run one version of dtrain on all nodes"));
}

}  // namespace

std::string EncodeFileRequest(const FileRequest& request) {
  comm::WireWriter writer;
  writer.U8(static_cast<uint8_t>(request.op));
  writer.U8(static_cast<uint8_t>(request.place));
  writer.U8(request.access == checkpoint::Access::kOwner ? 0 : 1);
  writer.U64(request.offset);
  writer.U64(request.bytes);
  writer.Bytes(request.path);
  return writer.Take();
}

absl::StatusOr<FileRequest> ParseFileRequest(absl::string_view text) {
  comm::WireReader reader(text);
  const uint8_t op = reader.U8();
  const uint8_t place = reader.U8();
  const uint8_t access = reader.U8();
  FileRequest request;
  request.offset = reader.U64();
  request.bytes = reader.U64();
  request.path = std::string(reader.Bytes(kFilePathBytesMax));
  if (!reader.Complete() || op < static_cast<uint8_t>(FileOp::kOpen) ||
      op > static_cast<uint8_t>(FileOp::kSend) || place > 1 || access > 1) {
    return MalformedFileMessage("request");
  }
  request.op = static_cast<FileOp>(op);
  request.place = static_cast<FilePlace>(place);
  request.access = access == 0 ? checkpoint::Access::kOwner : checkpoint::Access::kEveryone;
  return request;
}

std::string EncodeFileReply(const FileReply& reply) {
  comm::WireWriter writer;
  writer.U32(static_cast<uint32_t>(reply.status.raw_code()));
  writer.U8(IsDeviceError(reply.status) ? 1 : 0);
  writer.Bytes(reply.status.message().substr(0, kFileErrorBytesMax));
  writer.U64(reply.number);
  std::string text = writer.Take();
  text += reply.text;
  return text;
}

absl::StatusOr<FileReply> ParseFileReply(absl::string_view text) {
  comm::WireReader reader(text);
  const uint32_t code = reader.U32();
  const uint8_t of_device = reader.U8();
  const std::string message(reader.Bytes(kFileErrorBytesMax));
  FileReply reply;
  reply.number = reader.U64();
  if (!reader.ok() || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) ||
      of_device > 1) {
    return MalformedFileMessage("reply");
  }
  reply.status = absl::Status(static_cast<absl::StatusCode>(code), message);
  if (of_device == 1) {
    MarkDeviceError(reply.status);
  }
  reply.text = std::string(reader.Rest());
  return reply;
}

std::string EncodeEntries(const std::vector<checkpoint::Storage::Entry>& entries) {
  comm::WireWriter writer;
  writer.U32(static_cast<uint32_t>(entries.size()));
  for (const checkpoint::Storage::Entry& entry : entries) {
    writer.U8(entry.is_directory ? 1 : 0);
    writer.U64(entry.bytes);
    writer.Bytes(entry.name);
  }
  return writer.Take();
}

absl::StatusOr<std::vector<checkpoint::Storage::Entry>> ParseEntries(absl::string_view text) {
  comm::WireReader reader(text);
  const uint32_t count = reader.U32();
  std::vector<checkpoint::Storage::Entry> entries;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    checkpoint::Storage::Entry entry;
    entry.is_directory = reader.U8() != 0;
    entry.bytes = reader.U64();
    entry.name = std::string(reader.Bytes(kFilePathBytesMax));
    entries.push_back(std::move(entry));
  }
  if (!reader.Complete()) {
    return MalformedFileMessage("list");
  }
  return entries;
}

std::string EncodeChecksum(const checkpoint::FileChecksum& checksum) {
  comm::WireWriter writer;
  writer.U64(checksum.bytes);
  writer.Bytes(checksum.xxh3_128);
  writer.U32(static_cast<uint32_t>(checksum.crc32c.size()));
  for (const uint32_t crc : checksum.crc32c) {
    writer.U32(crc);
  }
  return writer.Take();
}

absl::StatusOr<checkpoint::FileChecksum> ParseChecksum(absl::string_view text) {
  comm::WireReader reader(text);
  checkpoint::FileChecksum checksum;
  checksum.bytes = reader.U64();
  checksum.xxh3_128 = std::string(reader.Bytes(kHashDigitsMax));
  const uint32_t count = reader.U32();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    checksum.crc32c.push_back(reader.U32());
  }
  if (!reader.Complete()) {
    return MalformedFileMessage("checksum");
  }
  return checksum;
}

absl::Status SendFileMessage(comm::DataSocket& socket, absl::string_view text,
                             absl::Span<const std::byte> data, Deadline deadline) {
  const FileHead head{static_cast<uint32_t>(text.size()), static_cast<uint32_t>(data.size())};
  if (text.size() > kFileTextBytesMax || data.size() > checkpoint::kManifestBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a message about the files of a host has ", text.size(), " and ", data.size(),
        " bytes; at most ", kFileTextBytesMax, " and ", checkpoint::kManifestBytesMax, " fit"));
  }
  std::vector<std::byte> begin(sizeof(head) + text.size());
  std::memcpy(begin.data(), &head, sizeof(head));
  std::memcpy(begin.data() + sizeof(head), text.data(), text.size());
  // Two messages, since the receiver learns the second one's size from the first.
  DT_RETURN_IF_ERROR(socket.Send(absl::MakeConstSpan(begin).subspan(0, sizeof(head)), deadline));
  DT_RETURN_IF_ERROR(socket.Send(absl::MakeConstSpan(begin).subspan(sizeof(head)), deadline));
  return socket.Send(data, deadline);
}

absl::StatusOr<FileHead> ReceiveFileHead(comm::DataSocket& socket, Deadline deadline) {
  FileHead head;
  DT_RETURN_IF_ERROR(
      socket.Receive(absl::MakeSpan(reinterpret_cast<std::byte*>(&head), sizeof(head)), deadline));
  if (head.text_bytes > kFileTextBytesMax || head.data_bytes > checkpoint::kManifestBytesMax) {
    return MalformedFileMessage("head");
  }
  return head;
}

absl::StatusOr<std::string> ReceiveFileText(comm::DataSocket& socket, const FileHead& head,
                                            Deadline deadline) {
  std::string text(head.text_bytes, '\0');
  DT_RETURN_IF_ERROR(socket.Receive(
      absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()), deadline));
  return text;
}

}  // namespace dtrain
