// A small HTTP proxy that stands between a client and a server of S3 and makes requests fail.
//
// One request a connection: it is read whole, judged, sent on, and the reply is sent back. A test
// gives the judge, a function of the request's first line and its number. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace dtrain::checkpoint::s3 {

enum class Fault {
  kNone,
  kSlowDown,       // A reply 503; the server never sees the request.
  kReset,          // The connection is closed; the server never sees the request.
  kLoseReply,      // The server acts, and its reply is lost.
  kFlipRequest,    // A byte in the middle of the request's body is changed.
  kFlipReply,      // A byte in the middle of the reply's body is changed.
  kCutReply,       // The connection is closed in the middle of the reply's body.
  kDropCondition,  // The server never sees If-None-Match, as if it knew no conditions.
  kHold,           // Nothing happens until Release, as if the network stood still.
};

class FaultProxy {
 public:
  // `line` is like "PUT /checkpoints/key?partNumber=1 HTTP/1.1"; `number` counts from 0.
  using Judge = std::function<Fault(const std::string& line, int number)>;

  FaultProxy(int server_port, Judge judge);
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;
  ~FaultProxy();

  std::string endpoint() const;
  int requests() const { return requests_; }
  // Requests that a fault was given to.
  int faults() const { return faults_; }
  int held() const { return held_; }
  void Release() { released_ = true; }

 private:
  void Accept();
  void Serve(int fd);
  // The server's whole reply.
  std::string Forward(const std::string& request) const;

  const int server_port_;
  const Judge judge_;
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> ending_{false};
  std::atomic<bool> released_{false};
  std::atomic<int> requests_{0};
  std::atomic<int> faults_{0};
  std::atomic<int> held_{0};
  std::thread acceptor_;
  std::mutex mutex_;
  std::set<int> open_;  // Connections that are being served, to break them at the end.
  std::vector<std::thread> servers_;
};

}  // namespace dtrain::checkpoint::s3
