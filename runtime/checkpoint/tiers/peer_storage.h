// The storage of another host, over connections to its FileServer.
//
// Every call blocks until the peer has answered, at most for the timeout, and names the host in its
// errors. Unavailable or DeadlineExceeded: the host cannot be reached. Thread-safe; threads that
// call at once use several connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "checkpoint/storage/storage.h"
#include "comm/net/data_socket.h"
#include "comm/side_lines.h"
#include "runtime/checkpoint/tiers/file_messages.h"

namespace dtrain {

// The connections to one host's server.
class PeerLines {
 public:
  struct Peer {
    int rank = 0;
    comm::Endpoint where;
    std::string host;
  };
  PeerLines(const comm::SideLines& lines, Peer peer, absl::Duration timeout);

  const std::string& host() const { return peer_.host; }
  absl::Duration timeout() const { return timeout_; }
  // One that nobody uses, or a new one. A host that could not be reached once counts as lost: the
  // next calls fail at once.
  absl::StatusOr<std::shared_ptr<comm::DataSocket>> Take();
  // For later calls. REQUIRES: no message is under way on it.
  void Return(std::shared_ptr<comm::DataSocket> socket);
  // Ends the calls that are under way and later ones, for a rank that ends.
  void Close();
  // Sends the request and gives its reply, whose error is that of the call. `into`: the data that
  // the reply carries. On an error of its own the connection is of no further use.
  absl::StatusOr<FileReply> CallOn(comm::DataSocket& socket, const FileRequest& request,
                                   absl::Span<const std::byte> data, absl::Span<std::byte> into,
                                   Deadline deadline);
  // The two halves of CallOn, for several requests on their way at once.
  absl::Status SendOn(comm::DataSocket& socket, const FileRequest& request,
                      absl::Span<const std::byte> data, Deadline deadline);
  absl::StatusOr<FileReply> ReceiveOn(comm::DataSocket& socket, const std::string& path,
                                      absl::Span<std::byte> into, Deadline deadline);
  // The same on any connection; gives the reply's error too.
  absl::StatusOr<FileReply> Call(const FileRequest& request, absl::Span<const std::byte> data = {},
                                 absl::Span<std::byte> into = {});
  absl::StatusOr<FileReply> CallWithin(absl::Duration timeout, const FileRequest& request,
                                       absl::Span<const std::byte> data,
                                       absl::Span<std::byte> into);

 private:
  // Gives the error of a connection with the host's name.
  absl::Status NoteBroken(const absl::Status& status);

  const comm::SideLines lines_;
  const Peer peer_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  bool broken_ = false;  // A connection has ended by an error, perhaps with the peer's process.
  absl::Status lost_;    // Why no new connection is made.
  std::vector<std::shared_ptr<comm::DataSocket>> idle_;
  std::vector<std::weak_ptr<comm::DataSocket>> all_;
};

class PeerStorage final : public checkpoint::Storage {
 public:
  // `root`: the storage's folder, for people.
  PeerStorage(std::shared_ptr<PeerLines> lines, FilePlace place, std::string root)
      : lines_(std::move(lines)), place_(place), root_(std::move(root)) {}

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> CreateFile(
      const std::string& path, uint64_t bytes_expected, checkpoint::Access access) override;
  // Creates a file that grows for long. Append returns when the bytes are sent, Sync when the peer
  // has taken all of them; an error of either loses the file. It is never finished, but dropped.
  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> CreateStream(const std::string& path,
                                                                         checkpoint::Access access);
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenFile(
      const std::string& path) override;
  // Opens a file whose size is known from a list, which takes no message.
  std::unique_ptr<checkpoint::ReadableFile> OpenListed(const std::string& path,
                                                       uint64_t bytes) const;
  // Has the host copy the file to the tier behind; gives the checksums of what it has copied.
  absl::StatusOr<checkpoint::FileChecksum> Send(const std::string& path, uint64_t bytes,
                                                checkpoint::Access access);
  absl::Status Publish(const std::string& path, absl::string_view content) override;
  absl::Status Replace(const std::string& path, absl::string_view content) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  std::optional<uint64_t> FreeBytes() override;
  std::string DisplayName(const std::string& path) const override;

 private:
  FileRequest Request(FileOp op, const std::string& path) const {
    return {.op = op, .place = place_, .path = path};
  }

  // Takes a connection and creates the file on it.
  absl::StatusOr<std::shared_ptr<comm::DataSocket>> Create(const FileRequest& request);

  const std::shared_ptr<PeerLines> lines_;
  const FilePlace place_;
  const std::string root_;
};

}  // namespace dtrain
