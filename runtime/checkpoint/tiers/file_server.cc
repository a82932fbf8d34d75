#include "runtime/checkpoint/tiers/file_server.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain {
namespace {

absl::StatusOr<checkpoint::FileChecksum> ReadChecksum(const checkpoint::ReadableFile& file,
                                                      bool from_medium) {
  if (from_medium) {
    file.DropCache();
  }
  checkpoint::FileChecksummer checksummer;
  checkpoint::BlockReader blocks(file, file.bytes());
  for (uint64_t at = 0; at < file.bytes(); at += checkpoint::kBlockBytes) {
    DT_ASSIGN_OR_RETURN(const absl::Span<const std::byte> block, blocks.Next());
    checksummer.Add(block);
  }
  return checksummer.Finish();
}

absl::string_view AsText(absl::Span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

}  // namespace

// Holds the files that one connection has open.
class FileServer::Session {
 public:
  Session(const Options& options, const std::atomic<bool>& ends) : options_(options), ends_(ends) {}

  FileReply Do(const FileRequest& request, absl::Span<const std::byte> data,
               absl::Span<std::byte> out) {
    checkpoint::Storage* const storage =
        request.place == FilePlace::kDisk ? options_.disk : options_.memory;
    if (storage == nullptr) {
      return {absl::NotFoundError("this host keeps no replicas")};
    }
    FileReply reply;
    reply.status = Act(*storage, request, data, out, reply);
    return reply;
  }

 private:
  absl::Status Act(checkpoint::Storage& storage, const FileRequest& request,
                   absl::Span<const std::byte> data, absl::Span<std::byte> out, FileReply& reply) {
    switch (request.op) {
      case FileOp::kOpen:
      case FileOp::kRead:
      case FileOp::kChecksum:
      case FileOp::kMakeDurable:
        return Read(storage, request, out, reply);
      case FileOp::kSend:
        return Send(storage, request, reply);
      case FileOp::kCreate:
      case FileOp::kAppend:
      case FileOp::kFinish:
        return Write(storage, request, data);
      case FileOp::kPublish:
        return storage.Publish(request.path, AsText(data));
      case FileOp::kReplace:
        return storage.Replace(request.path, AsText(data));
      case FileOp::kMakeDirectory:
        return storage.MakeDirectory(request.path);
      case FileOp::kSyncDirectory:
        return storage.SyncDirectory(request.path);
      case FileOp::kList: {
        DT_ASSIGN_OR_RETURN(const auto entries, storage.List(request.path));
        reply.text = EncodeEntries(entries);
        return absl::OkStatus();
      }
      case FileOp::kRemoveFile:
        return storage.RemoveFile(request.path);
      case FileOp::kRemoveDirectory:
        return storage.RemoveDirectory(request.path);
      case FileOp::kFreeBytes:
        reply.number = storage.FreeBytes().value_or(std::numeric_limits<uint64_t>::max());
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError("no such request");
  }

  absl::Status Read(checkpoint::Storage& storage, const FileRequest& request,
                    absl::Span<std::byte> out, FileReply& reply) {
    // A file that is opened anew may be another one of the same name.
    if (file_ == nullptr || request.op == FileOp::kOpen || path_ != request.path ||
        place_ != request.place) {
      DT_ASSIGN_OR_RETURN(file_, storage.OpenFile(request.path));
      path_ = request.path;
      place_ = request.place;
    }
    reply.number = file_->bytes();
    if (request.op == FileOp::kOpen) {
      return absl::OkStatus();
    }
    if (request.op == FileOp::kRead) {
      return file_->ReadAt(request.offset, out);
    }
    if (request.op == FileOp::kMakeDurable) {
      return file_->MakeDurable();
    }
    DT_ASSIGN_OR_RETURN(const checkpoint::FileChecksum checksum,
                        ReadChecksum(*file_, request.offset != 0));
    reply.text = EncodeChecksum(checksum);
    return absl::OkStatus();
  }

  absl::Status Send(checkpoint::Storage& storage, const FileRequest& request, FileReply& reply) {
    if (options_.behind == nullptr) {
      return absl::UnimplementedError("this host copies nothing to the tier behind");
    }
    DT_ASSIGN_OR_RETURN(const auto file, storage.OpenFile(request.path));
    DT_ASSIGN_OR_RETURN(const auto copy,
                        options_.behind->CreateFile(request.path, file->bytes(), request.access));
    checkpoint::FileChecksummer checksummer;
    checkpoint::BlockReader blocks(*file, file->bytes());
    for (uint64_t at = 0; at < file->bytes(); at += checkpoint::kBlockBytes) {
      if (ends_) {
        return absl::CancelledError("this host ends");
      }
      DT_ASSIGN_OR_RETURN(const absl::Span<const std::byte> block, blocks.Next());
      checksummer.Add(block);
      DT_RETURN_IF_ERROR(copy->Append(block));
    }
    DT_RETURN_IF_ERROR(copy->Finish());
    reply.text = EncodeChecksum(checksummer.Finish());
    return absl::OkStatus();
  }

  absl::Status Write(checkpoint::Storage& storage, const FileRequest& request,
                     absl::Span<const std::byte> data) {
    if (request.op == FileOp::kCreate) {
      DT_ASSIGN_OR_RETURN(written_,
                          storage.CreateFile(request.path, request.bytes, request.access));
      return absl::OkStatus();
    }
    if (written_ == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("no file is being written on this connection: ", request.path));
    }
    return request.op == FileOp::kAppend ? written_->Append(data)
                                         : std::exchange(written_, nullptr)->Finish();
  }

  const Options& options_;
  const std::atomic<bool>& ends_;  // The server's.
  std::string path_;
  FilePlace place_ = FilePlace::kDisk;
  std::unique_ptr<checkpoint::ReadableFile> file_;
  std::unique_ptr<checkpoint::WritableFile> written_;
};

FileServer::FileServer(std::unique_ptr<comm::DataListener> listener, const Options& options)
    : options_(options), listener_(std::move(listener)) {
  acceptor_ = std::thread([this] { AcceptAll(); });
}

FileServer::~FileServer() {
  ends_ = true;
  listener_->Close();
  acceptor_.join();
  for (Line& line : lines_) {
    line.socket->Shutdown();
  }
  lines_.clear();  // Waits for their threads.
}

void FileServer::AcceptAll() {
  PrepareThread("dtrain-files", /*low_priority=*/true);
  while (true) {
    absl::StatusOr<std::unique_ptr<comm::DataSocket>> socket =
        listener_->Accept(Deadline::Infinite());
    if (!socket.ok()) {
      return;  // The listener is closed.
    }
    lines_.remove_if([](const Line& line) { return line.ended.load(); });
    Start(*std::move(socket));
  }
}

// Where the system gives no more threads, this connection is refused; a later one may be served.
void FileServer::Start(std::unique_ptr<comm::DataSocket> socket) {
  Line& line = lines_.emplace_back();
  line.socket = std::move(socket);
  try {
    line.thread = std::make_unique<Worker>(
        WorkerOptions{.name = "dtrain-files", .queue_capacity = 1, .low_priority = true});
  } catch (const std::system_error& error) {
    DT_LOG(Warning) << "another host's rank cannot read or write the checkpoints of this one: "
                    << CannotStart("a thread for its connection", error.code().value()).message();
    line.socket->Shutdown();
    lines_.pop_back();
    return;
  }
  line.thread->Submit([this, &line] {
    // Also after an exception, as of a read that finds no memory: the peer is told by the loss of
    // the connection, and connects anew.
    const absl::Cleanup end = [&line] {
      line.socket->Shutdown();
      line.ended = true;
    };
    Serve(*line.socket);
  });
}

void FileServer::Serve(comm::DataSocket& socket) {
  Session session(options_, ends_);
  while (true) {
    const absl::StatusOr<FileHead> head = ReceiveFileHead(socket, Deadline::Infinite());
    if (!head.ok() || !Answer(session, socket, *head).ok()) {
      return;  // The peer is gone, or this server ends.
    }
  }
}

absl::Status FileServer::Answer(Session& session, comm::DataSocket& socket, const FileHead& head) {
  const Deadline deadline = Deadline::After(options_.timeout);
  DT_ASSIGN_OR_RETURN(const std::string text, ReceiveFileText(socket, head, deadline));
  DT_ASSIGN_OR_RETURN(const FileRequest request, ParseFileRequest(text));
  const bool reads = request.op == FileOp::kRead;
  if (reads && (request.bytes > kFilePartBytes || head.data_bytes != 0)) {
    return absl::InvalidArgumentError("a read of more than one part");
  }
  if (reads) {
    reads_.acquire();
  }
  const absl::Cleanup release = [&] {
    if (reads) {
      reads_.release();
    }
  };
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(
      reads ? request.bytes : uint64_t{head.data_bytes});
  const absl::Span<std::byte> in(buffer.get(), head.data_bytes);
  DT_RETURN_IF_ERROR(socket.Receive(in, deadline));
  const absl::Span<std::byte> out(buffer.get(), reads ? request.bytes : 0);
  const FileReply reply = session.Do(request, in, out);
  return SendFileMessage(
      socket, EncodeFileReply(reply),
      reply.status.ok() ? absl::Span<const std::byte>(out) : absl::Span<const std::byte>(),
      Deadline::After(options_.timeout));
}

}  // namespace dtrain
