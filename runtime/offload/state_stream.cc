#include "runtime/offload/state_stream.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace dtrain {

// One near buffer. The thread that updates waits until it is loaded; all else happens in the
// worker's order.
struct StateStream::Buffer {
  std::vector<std::vector<std::byte>> states;  // By state, for the largest chunk.
  std::vector<std::byte*> near;
  std::mutex mutex;
  std::condition_variable changed;
  bool idle = true;  // The worker has nothing to do with it.
  absl::Status status;

  void Begin() {
    std::lock_guard lock(mutex);
    idle = false;
  }
  void End(absl::Status result) {
    std::lock_guard lock(mutex);
    status.Update(result);
    idle = true;
    changed.notify_one();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return idle; });
    return std::exchange(status, absl::OkStatus());
  }
};

std::vector<StateChunk> CutChunks(absl::Span<const std::vector<UpdatePiece>> buckets,
                                  int64_t elements_max) {
  std::vector<StateChunk> chunks;
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    chunks.push_back({.bucket = static_cast<int>(bucket)});
    for (UpdatePiece rest : buckets[bucket]) {
      while (rest.elements > 0) {
        if (chunks.back().pieces.empty()) {
          chunks.back().local = rest.local;
        }
        const int64_t room = chunks.back().local + elements_max - rest.local;
        if (room <= 0) {
          chunks.push_back({.bucket = static_cast<int>(bucket)});
          continue;
        }
        UpdatePiece taken = rest;
        taken.elements = std::min(rest.elements, room);
        chunks.back().pieces.push_back(taken);
        chunks.back().elements = taken.local + taken.elements - chunks.back().local;
        rest.flat += taken.elements;
        rest.local += taken.elements;
        rest.elements -= taken.elements;
      }
    }
    chunks.back().ends_bucket = true;
  }
  return chunks;
}

StateStream::StateStream(std::vector<FarState> states, std::vector<StateChunk> chunks, int buffers)
    : states_(std::move(states)),
      chunks_(std::move(chunks)),
      worker_({.name = "dtrain-offload",
               .queue_capacity = static_cast<size_t>(2 * std::max(2, buffers))}) {
  DT_CHECK_GE(buffers, 2);
  int64_t largest = 0;
  for (const StateChunk& chunk : chunks_) {
    largest = std::max(largest, chunk.elements);
  }
  for (int i = 0; i < buffers; ++i) {
    Buffer& buffer = *buffers_.emplace_back(std::make_unique<Buffer>());
    for (const FarState& state : states_) {
      buffer.states.emplace_back(static_cast<size_t>(largest) * state.tensor().element_size());
      buffer.near.push_back(buffer.states.back().data());
    }
  }
}

StateStream::~StateStream() = default;

void StateStream::Load(Buffer& buffer, const StateChunk& chunk) {
  absl::Status status;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto width = static_cast<int64_t>(states_[i].tensor().element_size());
    status.Update(states_[i].Read(chunk.local * width,
                                  {buffer.near[i], static_cast<size_t>(chunk.elements * width)}));
  }
  buffer.End(status);
}

void StateStream::Store(Buffer& buffer, const StateChunk& chunk) {
  absl::Status status;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto width = static_cast<int64_t>(states_[i].tensor().element_size());
    status.Update(states_[i].Write(chunk.local * width,
                                   {buffer.near[i], static_cast<size_t>(chunk.elements * width)}));
  }
  std::lock_guard lock(buffer.mutex);
  buffer.status.Update(status);
}

absl::Status StateStream::Run(Body body) {
  const size_t ahead = std::min(buffers_.size(), chunks_.size());
  const auto load = [this](size_t index) {
    Buffer& buffer = *buffers_[index % buffers_.size()];
    buffer.Begin();
    worker_.Submit([this, &buffer, index] { Load(buffer, chunks_[index]); });
  };
  for (size_t i = 0; i < ahead; ++i) {
    load(i);
  }
  absl::Status status;
  size_t index = 0;
  for (; index < chunks_.size() && status.ok(); ++index) {
    Buffer& buffer = *buffers_[index % buffers_.size()];
    status.Update(buffer.Wait());
    if (!status.ok()) {
      break;
    }
    body(chunks_[index], buffer.near);
    worker_.Submit([this, &buffer, index] { Store(buffer, chunks_[index]); });
    if (index + buffers_.size() < chunks_.size()) {
      load(index + buffers_.size());
    }
  }
  // The worker's last task is done: what is left of it is nobody's.
  std::mutex mutex;
  std::condition_variable changed;
  bool drained = false;
  worker_.Submit([&] {
    std::lock_guard lock(mutex);
    drained = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return drained; });
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    status.Update(buffer->Wait());
  }
  return status;
}

int64_t StateStream::near_bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    for (const std::vector<std::byte>& state : buffer->states) {
      bytes += static_cast<int64_t>(state.size());
    }
  }
  return bytes;
}

}  // namespace dtrain
