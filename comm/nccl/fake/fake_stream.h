// The parts of FakeCuda: a stream, which is a thread with an in-order queue or the calling thread,
// and an event.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/nccl/fake/fake_capture.h"

namespace dtrain::comm {

class FakeStream {
 public:
  enum class Kind { kThread, kCaller };
  explicit FakeStream(int device, Kind kind = Kind::kThread)
      : device_(device),
        thread_(kind == Kind::kThread ? std::thread([this] { Run(); }) : std::thread()) {}
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  // Runs the queued operations, then joins. REQUIRES: operations that hang have been told to end.
  ~FakeStream();

  int device() const { return device_; }
  // Queues `operation`. A stream of the calling thread runs it at once.
  void Push(std::function<void()> operation);
  // Blocks until everything queued so far has run.
  void Synchronize();

 private:
  void Run();
  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

struct FakeEvent {
  int device = 0;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;
  uint64_t done = 0;
  bool in_graph = false;     // Whether a graph made the last record.
  uint64_t host_copies = 0;  // How many copies were on the host's stream before the last record.
  // The capture in which the event was recorded, by its number from 1, and the work that came
  // before it there. 0: it was recorded outside of a capture.
  uint64_t capture = 0;
  FakeCapture::Clock captured;
  std::chrono::steady_clock::time_point done_at;
};

}  // namespace dtrain::comm
