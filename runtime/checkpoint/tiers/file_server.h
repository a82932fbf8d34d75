// Serves the files of this host to the ranks of the others: its part of checkpoints, and the
// replicas that it keeps in memory. What they ask for it copies to the tier behind. One rank of
// each host has a server, which lives as long as the attempt. Only ranks of the same job and
// attempt get in, so a writer that a newer attempt has replaced reaches nothing.
//
// Two threads and one for each connection. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/threads/worker.h"
#include "checkpoint/storage/storage.h"
#include "comm/net/data_socket.h"
#include "runtime/checkpoint/tiers/file_messages.h"

namespace dtrain {

class FileServer {
 public:
  struct Options {
    checkpoint::Storage* disk = nullptr;
    checkpoint::Storage* memory = nullptr;  // Null: this host keeps no replica.
    checkpoint::Storage* behind = nullptr;  // Null: this host copies nothing there.
    absl::Duration timeout;  // The time that a peer may take for the rest of a message.
  };

  // REQUIRES: the storages outlive the server.
  FileServer(std::unique_ptr<comm::DataListener> listener, const Options& options);
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;
  // Ends all connections; a request that is under way ends first, a copy behind its block.
  ~FileServer();

  const comm::Endpoint& endpoint() const { return listener_->endpoint(); }

 private:
  struct Line {
    std::unique_ptr<comm::DataSocket> socket;
    std::atomic<bool> ended{false};
    std::unique_ptr<Worker> thread;  // Ends first.
  };
  class Session;

  void AcceptAll();
  void Start(std::unique_ptr<comm::DataSocket> socket);
  void Serve(comm::DataSocket& socket);
  absl::Status Answer(Session& session, comm::DataSocket& socket, const FileHead& head);

  // Reads at a time, each of which takes memory for kFilePartBytes.
  static constexpr std::ptrdiff_t kReadsAtOnce = 32;

  const Options options_;
  const std::unique_ptr<comm::DataListener> listener_;
  std::atomic<bool> ends_{false};
  std::counting_semaphore<kReadsAtOnce> reads_{kReadsAtOnce};
  std::list<Line> lines_;  // Touched by the thread that accepts, and after its end.
  std::thread acceptor_;
};

}  // namespace dtrain
