#include "runtime/checkpoint/tiers/peer_storage.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/threads/work_count.h"

namespace dtrain {
namespace {

// Connections that are kept while nobody uses them.
constexpr size_t kIdleLinesMax = 4;
// The peer listens before its address is known, but lets only so many in at a time.
constexpr absl::Duration kConnectTime = absl::Seconds(30);
// Where a connection has broken, the peer has most likely ended.
constexpr absl::Duration kConnectAgainTime = absl::Seconds(2);
// A disk that is slower than this counts as hung when a file's checksums are computed.
constexpr uint64_t kSlowestReadBytesPerSecond = 10'000'000;
// The same of the tier behind, when a file is copied there.
constexpr uint64_t kSlowestSendBytesPerSecond = 1'000'000;
// A stream's requests whose replies are still to come: few enough that the replies, which nobody
// reads meanwhile, never fill the connection.
constexpr int kUnansweredMax = 64;

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

class PeerReadableFile final : public checkpoint::ReadableFile {
 public:
  PeerReadableFile(std::shared_ptr<PeerLines> lines, FileRequest file, uint64_t bytes)
      : lines_(std::move(lines)), file_(std::move(file)), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    while (!into.empty()) {
      const auto part = into.subspan(0, kFilePartBytes);
      FileRequest request = file_;
      request.op = FileOp::kRead;
      request.offset = offset;
      request.bytes = part.size();
      DT_RETURN_IF_ERROR(lines_->Call(request, {}, part).status());
      offset += part.size();
      into.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }

  absl::Status MakeDurable() const override {
    FileRequest request = file_;
    request.op = FileOp::kMakeDurable;
    return lines_->Call(request).status();
  }

  absl::StatusOr<std::optional<checkpoint::FileChecksum>> FarChecksum(
      bool from_medium) const override {
    FileRequest request = file_;
    request.op = FileOp::kChecksum;
    request.offset = from_medium ? 1 : 0;
    const auto reading = absl::Seconds(static_cast<int64_t>(bytes_ / kSlowestReadBytesPerSecond));
    DT_ASSIGN_OR_RETURN(const FileReply reply,
                        lines_->CallWithin(lines_->timeout() + reading, request, {}, {}));
    DT_ASSIGN_OR_RETURN(checkpoint::FileChecksum checksum, ParseChecksum(reply.text));
    return std::optional(std::move(checksum));
  }

 private:
  const std::shared_ptr<PeerLines> lines_;
  const FileRequest file_;
  const uint64_t bytes_;
};

// Has a connection of its own, with which the peer's file ends if it is dropped.
class PeerWritableFile final : public checkpoint::WritableFile {
 public:
  PeerWritableFile(std::shared_ptr<PeerLines> lines, std::shared_ptr<comm::DataSocket> socket,
                   FileRequest file)
      : lines_(std::move(lines)), socket_(std::move(socket)), file_(std::move(file)) {}

  absl::Status Append(absl::Span<const std::byte> data) override {
    while (!data.empty()) {
      const auto part = data.subspan(0, kFilePartBytes);
      DT_RETURN_IF_ERROR(Call(FileOp::kAppend, part));
      data.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    DT_RETURN_IF_ERROR(Call(FileOp::kFinish, {}));
    lines_->Return(std::move(socket_));
    return absl::OkStatus();
  }

 private:
  absl::Status Call(FileOp op, absl::Span<const std::byte> data) {
    FileRequest request = file_;
    request.op = op;
    DT_ASSIGN_OR_RETURN(const FileReply reply, lines_->CallOn(*socket_, request, data, {},
                                                              Deadline::After(lines_->timeout())));
    return Annotate(reply.status, absl::StrCat("host ", lines_->host()));
  }

  const std::shared_ptr<PeerLines> lines_;
  std::shared_ptr<comm::DataSocket> socket_;
  const FileRequest file_;
};

// A file whose replies are read later, so that bytes travel while this host does something else.
class PeerStream final : public checkpoint::WritableFile {
 public:
  PeerStream(std::shared_ptr<PeerLines> lines, std::shared_ptr<comm::DataSocket> socket,
             FileRequest file)
      : lines_(std::move(lines)), socket_(std::move(socket)), file_(std::move(file)) {
    file_.op = FileOp::kAppend;
  }

  absl::Status Append(absl::Span<const std::byte> data) override {
    while (!data.empty()) {
      const auto part = data.subspan(0, kFilePartBytes);
      DT_RETURN_IF_ERROR(AwaitReplies(kUnansweredMax - 1));
      DT_RETURN_IF_ERROR(lines_->SendOn(*socket_, file_, part, Deadline::After(lines_->timeout())));
      ++unanswered_;
      data.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override { return AwaitReplies(0); }
  absl::Status Finish() override { return Sync(); }

 private:
  // Reads replies until at most `left` are still to come.
  absl::Status AwaitReplies(int left) {
    for (; unanswered_ > left; --unanswered_) {
      DT_ASSIGN_OR_RETURN(
          const FileReply reply,
          lines_->ReceiveOn(*socket_, file_.path, {}, Deadline::After(lines_->timeout())));
      DT_RETURN_IF_ERROR(Annotate(reply.status, absl::StrCat("host ", lines_->host())));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<PeerLines> lines_;
  const std::shared_ptr<comm::DataSocket> socket_;
  FileRequest file_;
  int unanswered_ = 0;
};

}  // namespace

PeerLines::PeerLines(const comm::SideLines& lines, Peer peer, absl::Duration timeout)
    : lines_(lines), peer_(std::move(peer)), timeout_(timeout) {}

absl::StatusOr<std::shared_ptr<comm::DataSocket>> PeerLines::Take() {
  absl::Duration time;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto socket = std::move(idle_.back());
      idle_.pop_back();
      return socket;
    }
    DT_RETURN_IF_ERROR(lost_);
    time = std::min(timeout_, broken_ ? kConnectAgainTime : kConnectTime);
  }
  auto connected = lines_.Connect(peer_.rank, peer_.where, Deadline::After(time));
  const std::lock_guard lock(mutex_);
  if (!connected.ok() || !lost_.ok()) {
    lost_.Update(Annotate(connected.status(), absl::StrCat("host ", peer_.host)));
    return lost_;
  }
  std::shared_ptr<comm::DataSocket> socket = *std::move(connected);
  all_.erase(
      std::remove_if(all_.begin(), all_.end(), [](const auto& one) { return one.expired(); }),
      all_.end());
  all_.push_back(socket);
  return socket;
}

void PeerLines::Return(std::shared_ptr<comm::DataSocket> socket) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleLinesMax) {
    idle_.push_back(std::move(socket));
  }
}

void PeerLines::Close() {
  const std::lock_guard lock(mutex_);
  lost_ = absl::CancelledError("this rank ends");
  idle_.clear();
  for (const auto& one : all_) {
    if (const auto socket = one.lock(); socket != nullptr) {
      socket->Shutdown();
    }
  }
}

absl::Status PeerLines::NoteBroken(const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  const std::lock_guard lock(mutex_);
  broken_ = true;
  return Annotate(status, absl::StrCat("host ", peer_.host));
}

absl::Status PeerLines::SendOn(comm::DataSocket& socket, const FileRequest& request,
                               absl::Span<const std::byte> data, Deadline deadline) {
  return NoteBroken(SendFileMessage(socket, EncodeFileRequest(request), data, deadline));
}

absl::StatusOr<FileReply> PeerLines::ReceiveOn(comm::DataSocket& socket, const std::string& path,
                                               absl::Span<std::byte> into, Deadline deadline) {
  const auto receive = [&]() -> absl::StatusOr<FileReply> {
    DT_ASSIGN_OR_RETURN(const FileHead head, ReceiveFileHead(socket, deadline));
    DT_ASSIGN_OR_RETURN(const std::string text, ReceiveFileText(socket, head, deadline));
    DT_ASSIGN_OR_RETURN(FileReply reply, ParseFileReply(text));
    if (head.data_bytes != (reply.status.ok() ? into.size() : 0)) {
      return absl::DataLossError(absl::StrCat("a reply carries ", head.data_bytes, " bytes of ",
                                              path, "; ", into.size(), " were wanted"));
    }
    DT_RETURN_IF_ERROR(socket.Receive(into.subspan(0, head.data_bytes), deadline));
    return reply;
  };
  absl::StatusOr<FileReply> reply = receive();
  DT_RETURN_IF_ERROR(NoteBroken(reply.status()));
  return reply;
}

absl::StatusOr<FileReply> PeerLines::CallOn(comm::DataSocket& socket, const FileRequest& request,
                                            absl::Span<const std::byte> data,
                                            absl::Span<std::byte> into, Deadline deadline) {
  DT_RETURN_IF_ERROR(SendOn(socket, request, data, deadline));
  return ReceiveOn(socket, request.path, into, deadline);
}

absl::StatusOr<FileReply> PeerLines::Call(const FileRequest& request,
                                          absl::Span<const std::byte> data,
                                          absl::Span<std::byte> into) {
  return CallWithin(timeout_, request, data, into);
}

absl::StatusOr<FileReply> PeerLines::CallWithin(absl::Duration timeout, const FileRequest& request,
                                                absl::Span<const std::byte> data,
                                                absl::Span<std::byte> into) {
  DT_ASSIGN_OR_RETURN(auto socket, Take());
  if (timeout > timeout_) {  // Who waits for this rank would else think that it hangs.
    WorkCount::Allow(timeout - timeout_);
  }
  DT_ASSIGN_OR_RETURN(FileReply reply,
                      CallOn(*socket, request, data, into, Deadline::After(timeout)));
  WorkCount::Note();
  Return(std::move(socket));
  DT_RETURN_IF_ERROR(Annotate(reply.status, absl::StrCat("host ", peer_.host)));
  return reply;
}

absl::StatusOr<std::shared_ptr<comm::DataSocket>> PeerStorage::Create(const FileRequest& request) {
  DT_ASSIGN_OR_RETURN(auto socket, lines_->Take());
  DT_ASSIGN_OR_RETURN(const FileReply reply,
                      lines_->CallOn(*socket, request, {}, {}, Deadline::After(lines_->timeout())));
  if (!reply.status.ok()) {
    lines_->Return(std::move(socket));
    return Annotate(reply.status, absl::StrCat("host ", lines_->host()));
  }
  return socket;
}

absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> PeerStorage::CreateFile(
    const std::string& path, uint64_t bytes_expected, checkpoint::Access access) {
  FileRequest request = Request(FileOp::kCreate, path);
  request.bytes = bytes_expected;
  request.access = access;
  DT_ASSIGN_OR_RETURN(auto socket, Create(request));
  return std::make_unique<PeerWritableFile>(lines_, std::move(socket), std::move(request));
}

absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> PeerStorage::CreateStream(
    const std::string& path, checkpoint::Access access) {
  FileRequest request = Request(FileOp::kCreate, path);
  request.access = access;
  DT_ASSIGN_OR_RETURN(auto socket, Create(request));
  return std::make_unique<PeerStream>(lines_, std::move(socket), std::move(request));
}

absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> PeerStorage::OpenFile(
    const std::string& path) {
  DT_ASSIGN_OR_RETURN(const FileReply reply, lines_->Call(Request(FileOp::kOpen, path)));
  return OpenListed(path, reply.number);
}

std::unique_ptr<checkpoint::ReadableFile> PeerStorage::OpenListed(const std::string& path,
                                                                  uint64_t bytes) const {
  return std::make_unique<PeerReadableFile>(lines_, Request(FileOp::kOpen, path), bytes);
}

absl::StatusOr<checkpoint::FileChecksum> PeerStorage::Send(const std::string& path, uint64_t bytes,
                                                           checkpoint::Access access) {
  FileRequest request = Request(FileOp::kSend, path);
  request.access = access;
  const auto copying = absl::Seconds(static_cast<int64_t>(bytes / kSlowestSendBytesPerSecond));
  DT_ASSIGN_OR_RETURN(const FileReply reply,
                      lines_->CallWithin(lines_->timeout() + copying, request, {}, {}));
  return ParseChecksum(reply.text);
}

absl::Status PeerStorage::Publish(const std::string& path, absl::string_view content) {
  return lines_->Call(Request(FileOp::kPublish, path), AsBytes(content)).status();
}

absl::Status PeerStorage::Replace(const std::string& path, absl::string_view content) {
  return lines_->Call(Request(FileOp::kReplace, path), AsBytes(content)).status();
}

absl::Status PeerStorage::MakeDirectory(const std::string& path) {
  return lines_->Call(Request(FileOp::kMakeDirectory, path)).status();
}

absl::Status PeerStorage::SyncDirectory(const std::string& path) {
  return lines_->Call(Request(FileOp::kSyncDirectory, path)).status();
}

absl::StatusOr<std::vector<checkpoint::Storage::Entry>> PeerStorage::List(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const FileReply reply, lines_->Call(Request(FileOp::kList, path)));
  return ParseEntries(reply.text);
}

absl::Status PeerStorage::RemoveFile(const std::string& path) {
  return lines_->Call(Request(FileOp::kRemoveFile, path)).status();
}

absl::Status PeerStorage::RemoveDirectory(const std::string& path) {
  return lines_->Call(Request(FileOp::kRemoveDirectory, path)).status();
}

std::optional<uint64_t> PeerStorage::FreeBytes() {
  const absl::StatusOr<FileReply> reply = lines_->Call(Request(FileOp::kFreeBytes, ""));
  return reply.ok() && reply->number != std::numeric_limits<uint64_t>::max()
             ? std::optional(reply->number)
             : std::nullopt;
}

std::string PeerStorage::DisplayName(const std::string& path) const {
  return absl::StrCat(lines_->host(), ":", root_, path.empty() ? "" : "/", path);
}

}  // namespace dtrain
